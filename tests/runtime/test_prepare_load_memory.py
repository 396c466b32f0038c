"""A rank that loads holds its shard and one tensor more, never the model."""

import ctypes
import gc
import re
from pathlib import Path

import pytest
import torch
from distributed import run_distributed

import modelzoo
from modelzoo.config.parallel import ParallelConfig
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.models.gpt2 import GPT2, GPT2Config
from modelzoo.models.model import Model
from modelzoo.runtime import World, connect, layout
from modelzoo.sharded import local_values

STATUS = Path("/proc/self/status")
MIB = 2**20
SLACK = 14 * MIB
"""Allocator, send buffers, Python objects; the models are of a hundred MiB."""


def model_of(family: str, width: int, vocabulary: int) -> Model:
    sizes = {"vocab_size": vocabulary, "hidden_size": width, "num_layers": 6, "num_heads": 4, "intermediate_size": 4 * width}
    if family == "bert":
        return Bert.from_config(BertConfig(**sizes), "masked_lm")
    return GPT2.from_config(GPT2Config(**sizes), "causal_lm")


def status_bytes(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


def peak_of_load(folder: Path, world: World, options: dict[str, int]) -> tuple[int, int, int, int]:
    """Return the peak above what there was before, this rank's shard, the largest tensor and the whole model, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what an earlier model has freed is no room for this one
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size starts again
    before = status_bytes("VmRSS")
    model = modelzoo.from_pretrained(folder, lay_out=layout(world, ParallelConfig(**options)))
    peak = status_bytes("VmHWM") - before
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    own = sum(local_values(parameter).nbytes for parameter in model.parameters())
    world.tensor_size = 1
    return peak, own, max(sizes), sum(sizes)


def load_and_measure(root: Path) -> None:
    with connect(device="cpu") as world:
        for family in ("bert", "gpt2"):
            for options in ({"zero": 3}, {"tensor": 2}):
                peak_of_load(root / f"small-{family}", world, options)  # what the first load brings in stays
        for options in ({"zero": 3}, {"tensor": 2}):
            peak, own, largest, whole = peak_of_load(root / "bert", world, options)
            assert own < 0.6 * whole
            assert peak > 0.9 * own, "the measure itself"
            assert peak <= own + largest + SLACK, (options, peak / MIB, own / MIB, largest / MIB)
            # GPT-2's maps are transposed, and query, key and value are one tensor of the file: they are read whole
            peak, own, largest, whole = peak_of_load(root / "gpt2", world, options)
            assert peak <= own + largest + SLACK, (options, peak / MIB, own / MIB, largest / MIB)


@pytest.mark.skipif(not STATUS.exists(), reason="resident sizes are read from /proc")
def test_a_rank_holds_its_shard_and_one_tensor_more(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for family in ("bert", "gpt2"):
        model_of(family, 32, 50).save_pretrained(tmp_path / f"small-{family}")
        model_of(family, 512, 15_000).save_pretrained(tmp_path / family)
    run_distributed(load_and_measure, 2, tmp_path)
