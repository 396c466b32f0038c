"""Runs with moments in eight bits: learned as before, stopped and resumed bit for bit, counted by the plan, refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import SPECIAL, WORDS, rows, settings_for, write_rows

from modelzoo.config import RunSettings
from modelzoo.errors import CheckpointError
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.plan.parts import read_parts
from modelzoo.runtime import find_latest, read_manifest
from modelzoo.runtime.adamw_8bit import AdamW8bit
from modelzoo.training import SilentProgress, build_optimizer, resume, train
from modelzoo.training.run_directory import RunDirectory


def settings(folder: Path, **changes: Any) -> RunSettings:
    """Settings of a BERT whose matrices are large enough for eight bits."""
    if not (folder / "model").exists():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(SPECIAL) + len(WORDS), hidden_size=64, num_layers=2, num_heads=2, intermediate_size=96, max_positions=64
        )
        Bert.from_config(config, "masked_lm").save_pretrained(folder / "model")
        (folder / "model" / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
        (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
        write_rows(folder / "train.jsonl", rows(22))
        write_rows(folder / "validation.jsonl", rows(9, seed=1))
    changes = {"optimizer__lr": 1e-3, **changes}
    return settings_for(folder, **{"optimizer__moments": "8bit", **changes})


def stop_at(step: int) -> SilentProgress:
    class Stopping(SilentProgress):
        def step(self, report: Any) -> None:
            if report.step == step:
                raise KeyboardInterrupt

    return Stopping()


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = train(settings(tmp_path, output__name="whole"), progress=SilentProgress())
    with pytest.raises(KeyboardInterrupt):
        train(settings(tmp_path, output__name="stopped"), progress=stop_at(7))
    (folder,) = (tmp_path / "runs").glob("stopped-*")
    assert 0 < find_latest(folder / "checkpoints").manifest.step < whole.step
    again = resume(folder, progress=SilentProgress())
    assert again.step == whole.step
    manifests = [read_manifest(find_latest(each / "checkpoints").path) for each in (folder, whole.folder)]
    names = [name for name in manifests[0].tensors if name.startswith("optimizer/exp_avg_codes/")]
    # four maps of attention and two of the feed-forward a block, the pooler's, and the table of positions
    assert len(names) == 2 * 6 + 2
    assert manifests[0].files["optimizer.safetensors"].size_bytes == manifests[1].files["optimizer.safetensors"].size_bytes
    for name in ("model", "optimizer"):
        contents = [load(each, name) for each in (folder, whole.folder)]
        assert contents[0].keys() == contents[1].keys()
        assert all(torch.equal(contents[0][key], contents[1][key]) for key in contents[0])


def load(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(find_latest(folder / "checkpoints").path / f"{kind}.safetensors")


def test_a_run_is_not_resumed_with_other_moments(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(settings(tmp_path), progress=stop_at(7))
    (folder,) = (tmp_path / "runs").iterdir()
    path = RunDirectory.existing(folder).resolved
    path.write_text(path.read_text().replace("8bit", "float32"))
    with pytest.raises(CheckpointError, match=r"optimizer.moments: the checkpoint has '8bit', the run now has None"):
        resume(folder, progress=SilentProgress())


@pytest.mark.parametrize(
    ("changes", "found"),
    [({"memory": {"host": "1GiB"}}, "found memory;"), ({"parallel": {"tensor": 2}}, r"found parallel.tensor=2;")],
)
def test_what_it_does_not_go_with_is_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    values = settings(tmp_path).model_dump(mode="json")
    with pytest.raises(ValueError, match=r"optimizer.moments=8bit works without tiers and on whole rows, " + found):
        RunSettings.model_validate({**values, **changes})


def test_the_plan_counts_what_the_optimizer_holds(tmp_path: Path) -> None:
    settings(tmp_path)
    model = Bert.from_pretrained(tmp_path / "model", task="classification")
    optimizer = build_optimizer(model, lr=1e-3, moments="8bit")
    assert isinstance(optimizer, AdamW8bit)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = sum(tensor.nbytes for state in optimizer.state.values() for kind, tensor in state.items() if kind != "step")
    parts = read_parts(model)
    assert held == parts.moment_bytes < 8 * parts.trained // 2
