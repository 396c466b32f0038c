"""In a notebook a run is one table that is drawn in its place, with everything escaped; elsewhere nothing of it is used."""

import re
import sys
from html.parser import HTMLParser
from types import ModuleType

import pytest
from tiny_runs import settings_for

from modelzoo.report.svg import Curve, line_chart
from modelzoo.training import train
from modelzoo.training.progress.choice import choose_progress
from modelzoo.training.progress.notebook import NotebookProgress, is_notebook


class ZMQInteractiveShell:
    pass


class Handle:
    def __init__(self, pages: list[str]) -> None:
        self.pages = pages

    def update(self, page: str) -> None:
        self.pages.append(page)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a stand-in for IPython has shown, one entry a drawing."""
    shown: list[str] = []

    def display(page: str, *, display_id: bool) -> Handle:
        shown.append(page)
        return Handle(shown)

    top, part = ModuleType("IPython"), ModuleType("IPython.display")
    top.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    part.display, part.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", top)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return shown


def test_a_run_in_a_notebook_is_shown_in_one_place(pages, tmp_path):
    assert is_notebook()
    assert isinstance(choose_progress(60.0), NotebookProgress)
    pages.clear()
    result = train(settings_for(tmp_path, train__epochs=1.0))
    last = pages[-1]
    assert f"{result.total_steps} of {result.total_steps}" in last
    assert "accuracy" in last
    assert "<svg" in last
    assert "finished" in last
    HTMLParser().feed(last)


def test_columns_of_notes_and_keys_of_curves_are_seen_in_a_page_without_our_style_sheet(pages):
    progress = NotebookProgress()
    progress.note("run      runs/demo-001")
    style = pages[-1].partition("</style>")[0]
    assert ".modelzoo pre{font-family:monospace" in style
    assert ".modelzoo .key{display:inline-block;width:10px" in style


def test_steps_stand_on_the_axis_as_whole_numbers(pages):
    chart = line_chart([Curve(name="loss", points=[(1, 0.5), (2, 0.25)])], label="loss")
    marks = re.findall(r'text-anchor="middle">([^<]*)<', chart)
    assert marks == ["1", "2"]


def test_notes_are_escaped(pages):
    progress = NotebookProgress()
    progress.note("<b>bold</b>")
    progress.close()
    assert "&lt;b&gt;" in pages[-1]
    assert "<b>" not in pages[-1]


def test_a_terminal_or_a_script_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_notebook()
    module = ModuleType("IPython")
    module.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert not is_notebook()
    assert "IPython.display" not in sys.modules or not isinstance(choose_progress(60.0), NotebookProgress)
