"""The script that measures tiers below an accelerator: its logic, with a part of this machine's memory taken for a device's."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    import gpu_scale

    yield gpu_scale
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def figures(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], dict[str, float]]:
    monkeypatch.chdir(tmp_path)
    rows = [row for row in script.ROWS if row.side != "stock" and row.case not in ("llama-64k",)]
    return {(row.case, row.side): script.measure(replace(row, rows=2, length=8), 1, is_pretended=True) for row in rows}


def test_every_row_runs_and_its_figures_are_those_of_its_tiers(figures: dict[tuple[str, str], dict[str, float]]) -> None:
    assert figures["llama-16k", "resident"]["loss"] == figures["llama-16k", "below"]["loss"]
    assert figures["bert-11gib", "plain"]["loss"] == pytest.approx(figures["bert-11gib", "below"]["loss"], abs=1e-5)
    assert figures["llama-16k", "resident"]["below"] == 0
    assert figures["llama-16k", "resident"]["host>device"] == 0
    below = figures["llama-16k", "below"]
    assert below["below"] == 1
    assert below["host>device"] > below["device>host"] > 0
    assert below["planned_host_gib"] > 0
    assert figures["qwen-14b", "below"]["disk_gib"] == 0
    assert 0 < figures["qwen-14b", "below"]["below"] < 1
    assert figures["20b", "below"]["disk_gib"] > 0
    for found in figures.values():
        assert torch.isfinite(torch.tensor([*found.values()])).all()


def test_the_probe_and_the_bound_are_of_the_same_units(script: ModuleType) -> None:
    rates = script.probe(is_pretended=True)
    assert min(rates.values()) > 0
    figures = {"tflops": 1.0, "step_s": 3.0, "parameters_b": 2.0, "below": 0.5, "host>device": 10.0, "device>host": 5.0}
    given = {"products_tflops": 2.0, "up_gb_s": 5.0, "down_gb_s": 1.0, "adamw_g_s": 0.1}
    # products 3 x 8 / 6 / 2 = 2, up 2, down 5, updates 0.5 x 2 / 0.1 = 10
    assert script.bound(figures, given) == 10.0
    assert script.bound({**figures, "below": 0.0}, given) == 5.0
    assert script.bound({"tflops": 1.0, "step_s": 3.0, "parameters_b": 2.0}, given) == 2.0


def test_the_shapes_are_the_models_they_are_named_after(script: ModuleType) -> None:
    from modelzoo import Bert, Llama
    from modelzoo.layers import skip_initialization

    expected = {"llama-8b": 8.03e9, "qwen-14b": 14.77e9, "20b": 20.0e9, "bert-large": 3.35e8}
    for row in script.ROWS:
        config = script.config_of(row, is_pretended=False)
        with torch.device("meta"), skip_initialization():
            model = Bert(config, "classification") if row.shape == "bert-large" else Llama(config, "causal_lm")
        assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(expected[row.shape], rel=0.01)


def test_without_an_accelerator_it_says_so(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    with pytest.raises(SystemExit, match="no accelerator is here; --pretend"):
        script.device_of(is_pretended=False)
