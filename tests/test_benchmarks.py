"""Benchmarks that call the runtime's own parts still run: each on a model of a few thousand values."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = {
    "plan.py": ("row bert 64 2 2 8 none budget=smallest update=deferred", "plan "),
    "tiers.py": ("--hidden 64 --layers 2 --rows 1 --length 8 --steps 1 --rounds 1 --only memory deferred machine", "step / bound"),
    "layouts.py": ("--hidden 64 --layers 1 --batch 2 --length 8 --steps 1 --rounds 1 --only plain sharded", "sharded"),
}


def ran(words: list[str], folder: Path) -> str:
    found = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    options, expected = SMALL[name]
    assert expected in ran([str(BENCHMARKS / name), *options.split()], tmp_path)


def test_the_largest_model_trains_without_a_limit_of_the_kernel(tmp_path: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import model_scale; model_scale.ours(64, 2, 2**32, '.')"
    assert "s a step" in ran(["-c", script], tmp_path)
