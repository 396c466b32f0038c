"""A plan with an adapter: what is frozen has no gradients, no moments, and no part in what is saved."""

from pathlib import Path

import torch

from modelzoo.config import RunSettings
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.plan import plan_training


def settings(folder: Path, **adapter: object) -> RunSettings:
    (folder / "train.jsonl").write_text("")
    return RunSettings.model_validate(
        {
            "recipe": "tiny",
            "model": {"name": str(folder / "model")},
            "data": {"train": str(folder / "train.jsonl")},
            "adapter": adapter,
        }
    )


def test_only_what_is_trained_has_gradients_moments_and_states(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=64)
    Bert.from_config(config, "classification").save_pretrained(tmp_path / "model")
    whole = plan_training(settings(tmp_path)).plan
    some = plan_training(settings(tmp_path, method="lora", r=4, targets=["query", "value"])).plan
    trained = 2 * 2 * 4 * (32 + 32) + 2 * 32 + 2
    assert (whole.model.numel, whole.model.trained) == (some.model.numel - trained + 66, whole.model.numel)
    assert some.model.trained == trained
    lines = {line.name: line.size_bytes for line in some.memory.tiers[some.machine.tier]}
    assert lines["gradients"] == 4 * trained
    assert lines["moments"] == 8 * trained
    assert lines["parameters"] == 4 * some.model.numel
    half = settings(tmp_path, method="lora", r=4, targets=["query", "value"]).model_dump() | {"parallel": {"precision": "bfloat16"}}
    halved = plan_training(RunSettings.model_validate(half)).plan
    halved_lines = {line.name: line.size_bytes for line in halved.memory.tiers[halved.machine.tier]}
    assert halved_lines["parameters"] == 4 * trained + 2 * (some.model.numel - trained)
    assert some.checkpoint_bytes == 12 * 4 * trained + 4 * trained
    assert whole.checkpoint_bytes == 12 * 4 * whole.model.numel + 4 * whole.model.numel
