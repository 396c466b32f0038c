"""Run the experiments of the scorecard and write what came of them, with the date, into docs/reliability.md.

    python tests/reliability/scorecard.py            # all rows; half an hour on two cores
    python tests/reliability/scorecard.py A3 A4      # some rows; the others stay as they are

Each row is a set of tests, slow ones included. A figure is what those tests counted, and a row with a failed test says so.
"""

import argparse
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from experiments import ROWS, Outcome, Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- scorecard: written by tests/reliability/scorecard.py -->", "<!-- end of the scorecard -->"


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
