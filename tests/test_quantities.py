"""Counts as people write them, and no "1 process(es)" in any text of the project."""

import ast
import re
from pathlib import Path

import pytest

from modelzoo.quantities import counted

ROOT = Path(__file__).resolve().parents[1]
BOTH_NUMBERS = re.compile(r"[a-z]\((s|es)\)")


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "step", "1 step"),
        (0, "step", "0 steps"),
        (2048, "token", "2,048 tokens"),
        (1, "process", "1 process"),
        (2, "process", "2 processes"),
        (3, "batch", "3 batches"),
    ],
)
def test_a_number_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_an_irregular_plural_is_given() -> None:
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")


@pytest.mark.parametrize("part", ["modelzoo", "layers", "converters", "recipes"])
def test_no_text_leaves_the_number_open(part: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / part).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and BOTH_NUMBERS.search(node.value)
    ]
    assert not found
