"""report.html: every section is there, nothing is loaded from elsewhere, no file becomes markup, torn runs are shown."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from written_runs import HOSTILE, write_run, write_timeline

from modelzoo.errors import InputError
from modelzoo.report import read_run, report_html, write_report
from modelzoo.report.html_report import SECTIONS

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None
)
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Reads a page, and insists that every element is closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "tiny-001")


def test_every_section_is_there_and_linked(run: Path) -> None:
    write_timeline(run)
    page = Page(report_html(read_run(run)))
    keys = [key for key, _, _ in SECTIONS]
    assert [each for each in page.ids if each != "findings"] == keys
    assert [value for name, value in page.attributes if name == "href"] == [f"#{key}" for key in keys]
    text = " ".join(page.words)
    for part in (
        "0.9000",
        "finished",
        "40 of 40",
        "452.8 MiB",
        "-3%",
        "compute 50.0 ms",
        "some/model",
        "modelzoo train tiny",
        "2.13.0",
    ):
        assert part in text, part
    assert "train: 36 of 360 rows (10.0%) were cut to data.max_length=512 tokens" in text
    assert "180 (50.0%)" in text


def test_the_page_loads_nothing_and_runs_nothing(run: Path) -> None:
    text = report_html(read_run(run))
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert re.findall(r"https?:|url\(|@import|//[a-z]", text) == []
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_nothing_from_a_file_becomes_markup(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny<b>-001", description=HOSTILE, model__name=HOSTILE, data__columns={HOSTILE: HOSTILE})
    for name in ("command.txt", "log.txt"):
        (run / name).write_text(f"2026-11-30T02:00:00Z WARNING {HOSTILE}\n")
    for name in ("env.json", "data.json", "report.json", "result.json"):
        known = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(poisoned(known)))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 41, "evaluation": {HOSTILE: 0.5, "accuracy": HOSTILE}}) + "\n")
    write_timeline(run)
    (run / "timeline.jsonl").write_text((run / "timeline.jsonl").read_text().replace("layers.", json.dumps(HOSTILE)[1:-1]))
    text = report_html(read_run(run))
    page = Page(text)
    assert "script" not in page.tags
    assert "b" not in page.tags[: page.tags.index("nav")]
    assert 'alert("x")' in " ".join(page.words)


def poisoned(value: object) -> object:
    """The same JSON with the hostile text as every text and behind every name."""
    if isinstance(value, dict):
        return {**{key: poisoned(inner) for key, inner in value.items()}, HOSTILE: HOSTILE}
    if isinstance(value, list):
        return [poisoned(inner) for inner in value]
    return HOSTILE if isinstance(value, str) and value != "finished" else value


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "report.json", "data.json", "env.json", "log.txt", "recipe.yaml"])
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "foreign"])
def test_a_file_that_is_missing_or_torn_costs_its_section_alone(run: Path, name: str, damage: str) -> None:
    file = run / name
    text = file.read_text()
    file.unlink()
    if damage != "missing":
        file.write_text({"empty": "", "torn": text[: len(text) // 2], "foreign": "[1, 2]\n\x00\ufffd\n"}[damage])
    Page(report_html(read_run(run)))


def test_a_run_without_evaluations_or_steps_has_a_page(tmp_path: Path) -> None:
    text = report_html(read_run(write_run(tmp_path / "early", steps=0, ending=None)))
    assert "nothing was recorded" in text
    assert "the run did not reach its end" in text


def test_values_that_are_not_finite_are_left_out_of_curves(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "loss": NaN, "lr": Infinity, "grad_norm": NaN}\n')
    text = report_html(read_run(run))
    assert not re.search(r'(d|cx|cy|points)="[^"]*(nan|inf)', text)


def test_a_long_run_has_a_small_page_and_takes_little_memory(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "long", steps=45_000))
    assert len(run.steps) <= 20_002
    assert (run.steps[0]["step"], run.steps[-1]["step"], run.step) == (1, 45_000, 45_000)
    assert len(run.evaluations) == 4_500
    run = read_run(write_run(tmp_path / "shorter", steps=3_000))
    assert len(report_html(run)) < 200_000


def test_the_page_is_written_again_in_place(run: Path) -> None:
    assert write_report(run) == run / "report.html"
    (run / "report.html").write_text("old")
    write_report(run)
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert not [path for path in run.iterdir() if path.name.startswith(".tmp")]


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected the folder of a run, with resolved\.yaml; found a folder without it"):
        read_run(tmp_path)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome on this machine")
@pytest.mark.slow
def test_a_real_browser_shows_it(run: Path, tmp_path: Path) -> None:
    write_timeline(run)
    write_report(run)
    picture = tmp_path / "page.png"
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,1400", f"--user-data-dir={tmp_path}/browser"]
    command = [str(BROWSER), *words, f"--screenshot={picture}", "--enable-logging=stderr", (run / "report.html").resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert picture.read_bytes().startswith(b"\x89PNG"), done.stderr
    # a page of one color has a few kB; what the policy refuses would be said on the console
    assert picture.stat().st_size > 40_000
    assert "CONSOLE" not in done.stderr
