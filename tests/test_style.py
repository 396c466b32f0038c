"""What style rules can be read from the text: length, documentation, shapes, and nothing that belongs to one machine."""

import ast
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = [file for folder in ("modelzoo", "layers", "converters") for file in sorted((ROOT / folder).rglob("*.py"))]
RECIPES = sorted((ROOT / "recipes").rglob("*.py"))
_PATTERNS = ("*.md", "*.toml", "*.txt", ".ci/run", ".*.yaml", "docs/**/*.md", "*/**/*.py", "recipes/**/*.md", "recipes/**/*.yaml")
_BUILT = {"build", "dist", ".venv", "venv", "runs"}
TEXTS = [file for pattern in _PATTERNS for file in sorted(ROOT.glob(pattern)) if not _BUILT & set(file.relative_to(ROOT).parts)]
MOST_LINES = 320
SHAPE = re.compile(r"\((?:\.\.\.|[A-Za-z_0-9+]+)(?:, ?[^()]*)?,? ?[^()]*\)")


def name_of(file: object) -> str:
    return str(file.relative_to(ROOT)) if isinstance(file, Path) else str(file)


def is_setter(function: ast.FunctionDef) -> bool:
    """Whether this is the second half of a property, whose first half has the docstring."""
    return any(isinstance(item, ast.Attribute) and item.attr == "setter" for item in function.decorator_list)


def takes_tensors(function: ast.FunctionDef) -> bool:
    return any("Tensor" in ast.unparse(argument.annotation) for argument in function.args.args if argument.annotation)


def public_definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Public functions and classes of a module, and the public methods of its public classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    item
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and not is_setter(item)
                )


@pytest.mark.parametrize("file", LIBRARY + RECIPES, ids=name_of)
def test_a_file_is_one_subject_of_bearable_length(file: Path) -> None:
    count = len(file.read_text().splitlines())
    assert count <= MOST_LINES, f"{name_of(file)} has {count} lines; split it by subject, at most {MOST_LINES}"


@pytest.mark.parametrize("file", LIBRARY, ids=name_of)
def test_every_public_name_is_documented(file: Path) -> None:
    tree = ast.parse(file.read_text())
    missing = [f"{node.name} (line {node.lineno})" for node in public_definitions(tree) if not ast.get_docstring(node)]
    if tree.body and not ast.get_docstring(tree):
        missing.insert(0, "the file itself")
    assert not missing, f"{name_of(file)}: no docstring: {', '.join(missing)}"


@pytest.mark.parametrize("file", [file for file in LIBRARY if file.parent.name in {"layers", "models"}], ids=name_of)
def test_every_forward_says_its_shapes(file: Path) -> None:
    wrong = [
        f"{name_of(file)}:{node.lineno}: forward without shapes such as (B, T, D)"
        for node in public_definitions(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        if node.name == "forward" and takes_tensors(node) and not SHAPE.search(ast.get_docstring(node) or "")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", [file for file in LIBRARY if file.name == "__init__.py"], ids=name_of)
def test_a_package_file_holds_imports_alone(file: Path) -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign, ast.AnnAssign, ast.If)
    lazy = {"__getattr__", "__dir__"}  # the top package loads its names when they are asked for
    wrong = [
        node.lineno
        for node in ast.parse(file.read_text()).body
        if not isinstance(node, allowed) and not (isinstance(node, ast.FunctionDef) and node.name in lazy)
    ]
    assert not wrong, f"{name_of(file)}: code in lines {wrong}"


@pytest.mark.parametrize("file", LIBRARY, ids=name_of)
def test_library_code_is_plain(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    hidden = [
        char
        for char in text
        if char not in "\n" and (unicodedata.category(char).startswith("C") or (char.isspace() and char != " "))
    ]
    assert not hidden, f"{name_of(file)}: {hidden[0]!r} cannot be seen in an editor; write it as an escape"
    tree = ast.parse(text)
    for node in ast.walk(tree):
        where = f"{name_of(file)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name != "*" for alias in node.names), f"{where}: star import"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{where}: print in library code; use logging, or modelzoo.cli.console"


@pytest.mark.parametrize("file", LIBRARY + RECIPES, ids=name_of)
def test_an_ignore_gives_its_rule_and_reason(file: Path) -> None:
    for number, line in enumerate(file.read_text().splitlines(), 1):
        for match in re.finditer(r"#\s*(?:noqa|type: ignore)(.*)", line):
            has_both = re.match(r"(?:: ?[A-Z]+[0-9]+(?:, ?[A-Z]+[0-9]+)*|\[[a-z-]+(?:, ?[a-z-]+)*\])\s+#?\s*\S+", match[1])
            assert has_both, f"{name_of(file)}:{number}: name the rule and the reason: {match[0]}"


@pytest.mark.parametrize("file", sorted({*LIBRARY, *TEXTS}), ids=name_of)
def test_nothing_belongs_to_one_machine(file: Path) -> None:
    pattern = re.compile(r"(?<![\w.~])/(?:home|root|work|Users|mnt|tmp)/\w")
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if "re.compile" not in line:
            assert not pattern.search(line), f"{name_of(file)}:{number}: a path of one machine"
            assert "T" + "ODO" not in line, f"{name_of(file)}:{number}: say it in an issue"


def test_test_files_have_names_of_their_own() -> None:
    names = [file.name for file in (ROOT / "tests").rglob("*.py")]
    assert sorted(names) == sorted(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))
