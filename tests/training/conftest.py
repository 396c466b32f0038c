"""What all tests of runs share."""

import pytest

from modelzoo.training import ending

DRAWN = {"test_runs", "test_ending", "test_notebook"}
"""Test files whose runs end with their picture."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs end as where matplotlib is not installed: the picture takes a third of a tiny run."""
    if request.module.__name__ not in DRAWN:
        monkeypatch.setattr(ending, "has_matplotlib", lambda: False)
