"""The page of pains, and the scorecard, name tests that there are."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "pains.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def functions_of(file: str) -> set[str]:
    """Return the test functions of a file, without importing it; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_pain_has_its_row_and_every_row_tests_that_exist() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 53))
    for row in rows:
        named = NAMED.findall(row)
        assert named, f"no test: {row}"
        missing = [f"{file}::{name}" for file, name in named if name not in functions_of(file)]
        assert not missing, f"no such test: {missing}"


def test_every_row_of_the_scorecard_runs_tests_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("experiments", ROOT / "tests" / "reliability" / "experiments.py")
    assert spec is not None
    assert spec.loader is not None
    experiments = importlib.util.module_from_spec(spec)
    sys.modules["experiments"] = experiments  # a dataclass looks its module up
    spec.loader.exec_module(experiments)
    for row in experiments.ROWS:
        for test in row.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), f"{row.name}: there is no {file}"
            assert not name or name.partition("[")[0] in functions_of(file), f"{row.name}: there is no test {test}"


def test_a_test_that_is_gone_would_be_found() -> None:
    assert "test_nothing_of_this_name" not in functions_of("tests/test_pains.py")
    assert functions_of("tests/test_none.py") == set()
