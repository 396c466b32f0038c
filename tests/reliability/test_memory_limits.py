"""Under a limit of the kernel's: what the plan says suffices with a tenth more, and what does not suffice is refused beforehand."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from modelzoo.config import RunSettings
from modelzoo.models.auto import model_class
from modelzoo.plan import find_machine, plan_training

MIB = 2**20
CONTROL = Path("/sys/fs/cgroup")
MARGIN = 1.1
LOADED = {"bert": 1.2, "gpt2": 1.4, "t5": 1.2}
"""Most memory for a load, in times of the model; GPT-2's maps are turned round one by one, which leaves holes in glibc's heap."""
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "intermediate_size": 2048, "max_positions": 128},
    "gpt2": {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "intermediate_size": 2048, "max_positions": 128},
    "t5": {"hidden_size": 512, "num_layers": 4, "num_decoder_layers": 4, "num_heads": 8, "intermediate_size": 2048},
}
TASKS = {"bert": "classification", "gpt2": "causal_lm", "t5": "seq2seq_lm"}
ROWS = {
    "bert": {"text": "the cat sat on the mat", "label": "a"},
    "gpt2": {"text": "the cat sat on the mat " * 3},
    "t5": {"source": "the cat sat on the mat", "target": "the mat"},
}


@dataclass(frozen=True)
class Ended:
    """How a limited process ended."""

    code: int
    output: str
    peak_bytes: int
    """Of its resident memory; 0 if it did not say."""


@contextmanager
def group(limit_bytes: int) -> Iterator[Path]:
    parent = CONTROL / "memory" if (CONTROL / "memory").is_dir() else CONTROL
    folder = parent / f"limits-{os.getpid()}"
    try:
        folder.mkdir()
        name = "memory.max" if parent == CONTROL else "memory.limit_in_bytes"
        (folder / name).write_text(str(limit_bytes))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no memory control group can be made here: {error.strerror}")
    try:
        yield folder
    finally:
        for _ in range(50):
            try:
                folder.rmdir()
                break
            except OSError:  # its last process is still on its way out
                time.sleep(0.1)


def limited(code: str, limit_bytes: int, *arguments: str) -> Ended:
    """Run Python under a limit; it says the peak of its resident memory last."""
    code += '\nimport resource\nprint("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)'
    with group(limit_bytes) as folder:
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
            preexec_fn=lambda: (folder / "cgroup.procs").write_text(str(os.getpid())) and None,
        )
    words = ran.stdout.split()
    return Ended(ran.returncode, ran.stdout, int(words[-1]) if ran.returncode == 0 and words[-2:-1] == ["peak"] else 0)


def model_folder(family: str, folder: Path, **sizes: int) -> int:
    """Write a model of about 30 million parameters with a tokenizer and rows; return the bytes of its weights.

    Args:
        family: A `model_type`.
        folder: Gets model/ and train.jsonl.
        **sizes: Others than those above.
    """
    from fuzz_targets import make_tokenizer

    cls = model_class(family)
    torch.manual_seed(0)
    model = cls.from_config(cls.config_class(vocab_size=8000, **{**SIZES[family], **sizes}), TASKS[family])
    model.save_pretrained(folder / "model")
    make_tokenizer(folder / "model", "generic")
    other = {**ROWS[family], "label": "b"} if family == "bert" else ROWS[family]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [ROWS[family], other] * 8))
    return sum(parameter.nbytes for parameter in model.parameters())


def settings(family: str, folder: Path, **memory: Any) -> RunSettings:
    return RunSettings.model_validate(
        {
            "recipe": "limits",
            "model": {"name": str(folder / "model"), "task": TASKS[family]},
            "data": {"train": str(folder / "train.jsonl"), "max_length": 32},
            "train": {"max_steps": 3, "batch_size": 4},
            "checkpoint": {"every": 1},
            "output": {"folder": str(folder / "runs")},
            "memory": memory,
        }
    )


IMPORTED = """
import sys
import torch
torch.set_num_threads(1)
import modelzoo
from modelzoo.config import RunSettings
from modelzoo.training import SilentProgress, train
"""
TRAIN = IMPORTED + "train(RunSettings.model_validate_json(sys.argv[1]), progress=SilentProgress())"
LOAD = IMPORTED + "model = modelzoo.from_pretrained(sys.argv[1])"
CONVERT = LOAD + "\nmodel.save_pretrained(sys.argv[2])"


@pytest.mark.slow
@pytest.mark.parametrize("family", SIZES)
def test_what_is_planned_suffices(family: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    model_bytes = model_folder(family, tmp_path)
    model_folder(family, tmp_path / "tiny", hidden_size=64, num_layers=1)
    idle = limited(CONVERT, 2**34, str(tmp_path / "tiny" / "model"), str(tmp_path / "tiny" / "copy"))
    assert idle.code == 0, idle.output
    runs = 0
    for code, arguments in ((LOAD, ["model"]), (CONVERT, ["model", "copy"])):
        limit = int(idle.peak_bytes + LOADED[family] * model_bytes)
        ended = limited(code, limit, *(str(tmp_path / name) for name in arguments))
        assert ended.code == 0, f"{-ended.code == signal.SIGKILL and 'killed: '}{ended.output}"
        assert ended.peak_bytes <= limit
        record_property("load", (ended.peak_bytes - idle.peak_bytes) / model_bytes)
        runs += 1
    assert runs == 2
    chosen = settings(family, tmp_path)
    planned = plan_training(chosen).peak_bytes
    ended = limited(TRAIN, int(MARGIN * planned), chosen.model_dump_json())  # it saves a checkpoint after each step
    assert ended.code == 0, f"killed under {int(MARGIN * planned) >> 20} MiB: {ended.output[-2000:]}"
    record_property("off", abs(planned / ended.peak_bytes - 1))
    assert abs(planned / ended.peak_bytes - 1) <= 0.15, (planned >> 20, ended.peak_bytes >> 20)
    runs += 1
    record_property("runs", runs)


@pytest.mark.slow
@pytest.mark.parametrize("family", SIZES)
def test_what_does_not_suffice_is_refused_before_it_is_taken(
    family: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model_bytes = model_folder(family, tmp_path)
    budget = int(find_machine("this").program_bytes + model_bytes) // MIB
    code = TRAIN.replace("train(Run", "settings = RunSettings.model_validate_json(sys.argv[1])\ntry:\n    train(Run")
    code += "\nexcept modelzoo.errors.ConfigError as error:\n    print(error)"
    ended = limited(code, 2**34, settings(family, tmp_path, host=f"{budget}MiB").model_dump_json())
    assert ended.code == 0, ended.output
    assert f"{budget}" in ended.output, ended.output
    record_property("runs", 1)
