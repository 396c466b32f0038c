"""Every regular expression of the project answers at once, whatever it is given: none can be made to search for years."""

import ast
import re
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
METHODS = {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer"}
LENGTH = 100_000
LIMIT_S = 0.1
OF_OUR_OWN = {"modelzoo/cli/catalogue.py"}
"""Read the recipes of the project alone."""


SOURCES = {
    path: path.read_text(encoding="utf-8") for name in ("modelzoo", "layers", "converters") for path in (ROOT / name).rglob("*.py")
}


def patterns() -> list[tuple[str, str, set[str]]]:
    """Return where each pattern stands that is written down as a whole, the pattern, and how it is applied."""
    found = []
    for path, text in sorted(SOURCES.items()):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(text)
        owners = {id(node.value): node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign)}
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
            if not is_call or getattr(node.func.value, "id", "") != "re" or node.func.attr not in METHODS:
                continue
            if isinstance(node.args[0], ast.Constant) and name not in OF_OUR_OWN:
                found.append((f"{name}:{node.lineno}", node.args[0].value, applied(node.func.attr, owners.get(id(node)))))
    return found


def applied(method: str, owner: ast.expr | None) -> set[str]:
    """Return whether a pattern is matched at the beginning or searched for."""
    used = {method}
    if method == "compile":
        everywhere = "".join(SOURCES.values())
        used = set(re.findall(rf"\b{owner.id}\.(\w+)\(", everywhere)) & METHODS if isinstance(owner, ast.Name) else set()
    used = used or {"match", "search"}
    return {each if each in ("match", "fullmatch") else "search" for each in used}


PATTERNS = patterns()


def hostile(pattern: str, length: int) -> list[str]:
    """Return texts of one repeated piece each, of what the pattern speaks about, with an end that does not fit."""
    pieces = {"a", "A", "0", "1", " ", "\n", ".", "-", "_", ",", "[", "]", "/", "a.", "0.", "1_", "a-", ":0", "[0,", "<", "\u00e9"}
    pieces |= set(re.findall(r"[A-Za-z_<>/@]+", pattern))
    return [piece * (length // len(piece)) + end for piece in sorted(pieces) for end in ("", "!", "\0")]


def test_patterns_are_found() -> None:
    assert len(PATTERNS) > 20


@pytest.mark.parametrize("length", [LENGTH // 20, pytest.param(LENGTH, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("place", "pattern", "methods"), PATTERNS, ids=[place for place, _, _ in PATTERNS])
def test_a_pattern_takes_no_time(place: str, pattern: str, methods: set[str], length: int) -> None:
    compiled = re.compile(pattern)
    for text in hostile(pattern, length):
        for method in methods:
            started = time.process_time()
            getattr(compiled, method)(text)
            seconds = time.process_time() - started
            assert seconds < LIMIT_S, f"{place}: {pattern!r}: {method} of {length} x {text[:20]!r} took {seconds:.2f} s"
