"""Each rank draws its own dropout; a new head is the same on all."""

from pathlib import Path

import torch
from distributed import run_distributed
from tiny_runs import settings_for

from modelzoo.training import SilentProgress, train
from modelzoo.training.loop import Loop


def remember_state(folder: str) -> None:
    """Write down the state of the random generator as the loop begins."""
    run = Loop.run

    def remembered(loop: Loop) -> object:
        torch.save(torch.get_rng_state(), Path(folder) / f"state-{loop.world.rank}.pt")
        return run(loop)

    Loop.run = remembered  # type: ignore[method-assign]  # the process ends with this run
    train(settings_for(Path(folder), train__max_steps=2, output__name="two"), progress=SilentProgress())


def test_ranks_do_not_drop_the_same_features(tmp_path):
    """BMTrain gave every rank one seed, so that all dropped the same features of their different samples."""
    settings_for(tmp_path)
    run_distributed(remember_state, 2, str(tmp_path))
    first, second = (torch.load(tmp_path / f"state-{rank}.pt") for rank in (0, 1))
    masks = [torch.rand(64, generator=_at(state)) > 0.1 for state in (first, second)]
    assert not torch.equal(*masks)


def _at(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator
