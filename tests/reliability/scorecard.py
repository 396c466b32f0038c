"""Run the experiments of the scorecard and write what came of them, with the date, into docs/reliability.md.

    python tests/reliability/scorecard.py            # all rows; half an hour on two cores
    python tests/reliability/scorecard.py A3 A4      # some rows; the others stay as they are

Each row is a set of tests, slow ones included. A figure is what those tests counted, and a row with a failed test says so.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- scorecard: written by tests/reliability/scorecard.py -->", "<!-- end of the scorecard -->"
KILLS = "tests/training/test_kills.py"
FAULTS = "tests/runtime/test_checkpoint_faults.py"
CHECKPOINT = "tests/runtime/test_checkpoint.py"
STATES = "tests/runtime/test_checkpoint_states.py"


@dataclass
class Outcome:
    """What came of the tests of a row."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    counted: dict[str, list[float]] = field(default_factory=dict)
    """What the tests counted, by name, one value a test."""

    def total(self, name: str) -> int:
        return int(sum(self.counted.get(name, [])))

    def most(self, name: str) -> float:
        return max(self.counted.get(name, [0]))


@dataclass(frozen=True)
class Row:
    """An experiment of the scorecard."""

    name: str
    experiment: str
    tests: tuple[str, ...]
    figure: Callable[[Outcome], str]


def _kills(found: Outcome) -> str:
    return (
        f"{found.total('kills')} kills: {found.total('resumable')} resumable, {found.total('exact')} bit for bit; at most "
        f"{found.most('lost'):g} save interval(s) lost; {found.total('runs')} runs came to the same end"
    )


def _two_ranks(found: Outcome) -> str:
    return f"{_kills(found)}; a survivor ended within {found.most('slowest_survivor_s'):g} s"


def _publishing(found: Outcome) -> str:
    one, two = found.total("publish kills") + found.total("publish errors"), found.total("publish errors of two ranks")
    return f"{one} faults on one process, {two} on two ranks: 0 mixed, 0 unloadable, each error told to all ranks"


def _stops(found: Outcome) -> str:
    asked = 5 * (found.passed + found.failed)
    return f"{found.total('stops within an epoch')} of {asked} stops: same order of samples, same end bit for bit"


def _count(what: str) -> Callable[[Outcome], str]:
    return lambda found: f"{found.passed} of {found.passed + found.failed} {what}"


ROWS = (
    Row(
        "A1",
        "kill -9 at a random moment of a run that saves every step",
        (f"{KILLS}::test_run_killed_two_hundred_times_goes_on_bit_for_bit",),
        _kills,
    ),
    Row(
        "A2",
        "the same on 2 ranks, killing either or both",
        (f"{KILLS}::test_run_of_two_ranks_killed_at_either_or_both_goes_on_bit_for_bit",),
        _two_ranks,
    ),
    Row(
        "A3",
        "a kill, and an error, at every call to the system while publishing",
        tuple(
            f"{FAULTS}::test_{name}"
            for name in (
                "kill_at_every_point_of_publishing_leaves_old_or_new",
                "error_at_every_point_of_publishing_is_told_and_leaves_old_or_new",
                "error_on_either_of_two_ranks_is_told_to_both_with_the_rank",
            )
        ),
        _publishing,
    ),
    Row(
        "A4",
        "disk full at 0, 10, ... 90 % of the save: file size limit, injected, real file system; no room; no right",
        tuple(
            f"{FAULTS}::test_{name}"
            for name in (
                "file_size_limit_leaves_the_old_checkpoint",
                "disk_full_after_some_bytes_leaves_the_old_checkpoint",
                "real_full_disk_leaves_the_old_checkpoint",
                "full_disk_is_refused_before_anything_is_written",
                "folder_without_the_right_to_write_is_an_error_and_stays_as_it_is",
            )
        ),
        _count("leave the old checkpoint, and a save after it works"),
    ),
    Row(
        "A5",
        "saving in the background: weights changed at once, killed in flight, failed writer",
        ("tests/runtime/test_checkpoint_background.py", "tests/training/test_background_saves.py"),
        _count("right"),
    ),
    Row(
        "A5 kills",
        "kill -9 of a run that saves every step in the background",
        (f"{KILLS}::test_run_that_saves_in_the_background_loses_two_intervals_at_most",),
        _kills,
    ),
    Row(
        "A6",
        "five stops within one epoch, at odd steps, 4 seeds",
        ("tests/training/test_resume_often.py::test_five_stops_within_one_epoch_change_nothing",),
        _stops,
    ),
    Row(
        "A7",
        "the newest damaged by hand",
        (f"{CHECKPOINT}::test_damaged_newest_falls_back_and_says_why", f"{STATES}::test_retention_never_removes_the_last_good_one"),
        _count("fall back to the one before and say why"),
    ),
    Row(
        "B2",
        "{1,2,3,4} -> {1,2,3,4} ranks x ZeRO 0 to 3 x tied or not, vocabulary 7, with tensor 2 and hybrid sharding",
        ("tests/runtime/test_resume_grid.py::test_checkpoint_of_every_layout_resumes_on_every_other_bit_for_bit",),
        lambda found: f"{found.total('pairs')} pairs bit for bit, next loss within 1e-6",
    ),
    Row(
        "B6, F4",
        "edge states of optimizers and generators; ranks that disagree; a save on one rank only",
        (STATES, f"{CHECKPOINT}::test_optimizer_without_a_step_is_a_legal_state", "tests/runtime/test_checkpoint_ranks.py"),
        _count("exact, or refused with the names"),
    ),
)


def run(row: Row) -> Outcome:
    """Run the tests of a row, the slow ones too."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "slow or not slow",
            "-o",
            "junit_family=xunit1",
            f"--junitxml={report}",
            *row.tests,
        ]
        subprocess.run(command, cwd=ROOT, check=False)
        outcome = Outcome()
        if not report.exists():
            sys.stderr.write(f"{row.name}: the tests were killed\n")
            outcome.failed = 1
            return outcome
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is not None:
                outcome.skipped += 1
            elif case.find("failure") is not None or case.find("error") is not None:
                outcome.failed += 1
            else:
                outcome.passed += 1
            for counted in case.iter("property"):
                outcome.counted.setdefault(counted.attrib["name"], []).append(float(counted.attrib["value"]))
        return outcome


def line_of(row: Row, outcome: Outcome) -> str:
    """Return the row as a line of the table."""
    figure = row.figure(outcome)
    if outcome.failed or not outcome.passed:
        figure = f"**{outcome.failed} of {outcome.failed + outcome.passed} tests failed**; {figure}"
    if outcome.skipped:
        figure += f" ({outcome.skipped} tests skipped)"
    return f"| {row.name} | {row.experiment} | {figure} | {datetime.now(UTC).date()} |"


def write(lines: dict[str, str]) -> None:
    """Put lines into the table of the page, in the order of the rows, and keep the lines of other rows."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    table, after = rest.split(END)
    kept = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    kept.update(lines)
    body = "\n".join(kept[row.name] for row in ROWS if row.name in kept)
    head = "| | experiment | what came of it | measured |\n|---|---|---|---|"
    PAGE.write_text(f"{before}{BEGIN}\n{head}\n{body}\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measure the rows that were named, or all; return 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(row.name for row in ROWS))
    wanted = parser.parse_args().rows
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such row: {sorted(unknown)}; known: {[row.name for row in ROWS]}")
    failed = 0
    for row in ROWS:
        if not wanted or row.name in wanted:
            outcome = run(row)
            failed += outcome.failed
            write({row.name: line_of(row, outcome)})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
