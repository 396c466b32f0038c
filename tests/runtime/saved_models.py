"""Small trained models and their checkpoints, for tests of saving."""

from pathlib import Path

import torch
from tiny_model import adamw, build, step

from modelzoo.runtime import Identity, find_latest, load_checkpoint, model_tensors, optimizer_tensors, save_checkpoint

IDENTITY = Identity("config", "data")


def trained(steps=2, seed=0):
    model = build(seed=seed)
    optimizer = adamw(model)
    for number in range(steps):
        step(model, optimizer, seed=number)
    return model, optimizer


def save(folder, number, world, model, optimizer, state=None):
    return save_checkpoint(
        folder, number, model=model, optimizer=optimizer, world=world, state=state or {"position": number}, identity=IDENTITY
    )


def assert_same(first, second):
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_newest_is(folder: Path, world, models) -> int:
    """Load the newest checkpoint, which must be exactly the model of its step; return the step."""
    found = find_latest(folder)
    other, fresh = trained(0, seed=4)
    assert load_checkpoint(found.path, model=other, optimizer=fresh, world=world) == {"position": found.manifest.step}
    model, optimizer = models[found.manifest.step]
    assert_same(model_tensors(other), model_tensors(model))
    assert_same(optimizer_tensors(other, fresh), optimizer_tensors(model, optimizer))
    return found.manifest.step
