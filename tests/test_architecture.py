"""Who may import whom: between the parts, within them, and from outside. Read from the source, so lazy imports count too."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"modelzoo": "modelzoo", "layers": "modelzoo.layers", "converters": "modelzoo.converters", "recipes": "modelzoo.recipes"}
ANYTHING = {"*"}

# part -> the parts that it may import. The part of a file is its folder below modelzoo/, or the file's own name.
PARTS: dict[str, set[str]] = {
    "errors": set(),
    "quantities": set(),
    "sharded": set(),
    "config": {"quantities", "errors"},
    "layers": {"errors"},
    "converters": {"errors"},
    "hub": {"converters", "sharded", "quantities", "errors"},
    "adapters": {"config", "converters", "hub", "layers", "sharded", "errors"},
    "models": {"adapters", "layers", "hub", "converters", "errors"},  # adapters: a folder of one loads with its base
    "launch": {"errors"},
    "runtime": {"config", "launch", "quantities", "sharded", "errors"},
    "data": {"quantities", "errors"},
    "report": {"config", "quantities", "errors"},  # from the files of a run, so that old runs are shown without torch
    "plan": {"adapters", "config", "converters", "hub", "layers", "models", "runtime", "quantities", "errors"},
    "training": {
        "adapters",
        "config",
        "data",
        "generation",
        "launch",
        "models",
        "hub",
        "plan",
        "quantities",
        "report",
        "runtime",
        "errors",
    },
    "generation": {"layers", "models", "hub", "data", "sharded", "errors"},
    "verification": {"models", "hub", "converters", "errors"},
    "adapter_verification": {"adapters", "converters", "models", "verification", "errors"},
    # what the command's training commands are in Python: settings, training and what is done with the result
    "run": {"config", "hub", "launch", "models", "plan", "training", "verification", "errors"},
    "cli": ANYTHING,
    "recipes": ANYTHING,
    "__init__": ANYTHING,
    "__main__": {"cli"},
}

# part -> the distributions outside the standard library that it may import.
FOREIGN: dict[str, set[str]] = {
    "errors": set(),
    "quantities": set(),
    "sharded": {"torch"},
    "launch": set(),
    "config": {"annotated_types", "pydantic", "yaml"},
    "layers": {"torch"},
    "converters": {"safetensors", "torch"},
    "hub": {"huggingface_hub", "safetensors", "torch"},
    "adapters": {"torch", "torchao"},  # torchao: an extra, asked for where a base is stored in fewer bits
    "models": {"torch"},
    "runtime": {"numpy", "safetensors", "torch"},
    "data": {"PIL", "datasets", "huggingface_hub", "jinja2", "numpy", "pyarrow", "tokenizers", "torch", "transformers"},
    "plan": {"pydantic", "torch", "yaml"},
    "report": {"huggingface_hub", "matplotlib", "yaml"},
    "training": {"IPython", "matplotlib", "numpy", "psutil", "rich", "torch", "trackio", "wandb"},
    "generation": {"torch"},
    "verification": {"torch", "transformers"},
    "adapter_verification": {"peft", "torch", "transformers"},
    "run": {"transformers"},  # a result as transformers' own class, for those who ask for it
    "cli": {"huggingface_hub", "packaging", "psutil", "rich", "torch", "transformers", "typer"},
    "recipes": ANYTHING,
    "__init__": set(),
    "__main__": set(),
}

FILES = sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    names = (SOURCES[parts[0]], *(part for part in parts[1:] if part != "__init__"))
    return ".".join(names)


def part_of(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


MODULES = {module_name(file) for file in FILES}


@cache
def imports(file: Path) -> tuple[tuple[str, int], ...]:
    """The modules that a file imports, anywhere in it, each with its line."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert node.level == 0, f"{file.relative_to(ROOT)}:{node.lineno}: relative import; write modelzoo.…"
            names = [f"{module}.{alias.name}" for alias in node.names]
            inner = [name for name in names if name in MODULES]
            found.extend((name, node.lineno) for name in inner)
            if len(inner) < len(names):
                found.append((module, node.lineno))
    return tuple(found)


def own_imports(file: Path) -> Iterator[tuple[str, int]]:
    return ((module, line) for module, line in imports(file) if module.partition(".")[0] == "modelzoo")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_what_its_part_may(file: Path) -> None:
    part = part_of(module_name(file))
    assert part in PARTS, f"{part} is a new part: give it its arrows in PARTS and FOREIGN"
    wrong = []
    for module, line in own_imports(file):
        other = part_of(module)
        is_allowed = PARTS[part] == ANYTHING or other in PARTS[part] or (other == part != "__init__")
        if not is_allowed:
            wrong.append(f"{file.relative_to(ROOT)}:{line}: {part} may not import {module}")
    for module, line in imports(file):
        name = module.partition(".")[0]
        is_foreign = name not in sys.stdlib_module_names and name != "modelzoo"
        is_neighbour = (file.parent / f"{name}.py").is_file() and part == "recipes"
        if is_foreign and not is_neighbour and FOREIGN[part] != ANYTHING and name not in FOREIGN[part]:
            wrong.append(f"{file.relative_to(ROOT)}:{line}: {part} may not import {name}")
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_the_command_or_the_recipes() -> None:
    users = {
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for module, line in own_imports(file)
        if part_of(module) in {"cli", "recipes"} and part_of(module_name(file)) not in {"cli", "recipes", "__main__"}
    }
    assert not users


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The first circle in a graph of imports, or nothing."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            if circle := visit(other, [*path, node]):
                return circle
        done.add(node)
        return []

    return next((circle for node in sorted(graph) if (circle := visit(node, []))), [])


def test_no_circle_between_files() -> None:
    graph = {module_name(file): {module for module, _ in own_imports(file) if module in MODULES} for file in FILES}
    graph.pop("modelzoo", None)  # its names are loaded when they are asked for
    assert cycle_in({name: others - {"modelzoo"} for name, others in graph.items()}) == []


def test_no_circle_between_parts() -> None:
    graph: dict[str, set[str]] = {}
    for file in FILES:
        part = part_of(module_name(file))
        graph.setdefault(part, set()).update(part_of(module) for module, _ in own_imports(file))
    graph.pop("__init__", None)
    assert cycle_in({part: others - {part, "__init__"} for part, others in graph.items()}) == []


def test_a_circle_would_be_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("part", ["layers", "models"])
def test_the_blocks_and_models_know_nothing_of_processes(part: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {module}"
        for file in FILES
        if part_of(module_name(file)) == part
        for module, line in imports(file)
        if module.startswith("torch.distributed")
    ]
    assert not wrong


def test_torch_is_used_by_its_public_names() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {module}"
        for file in FILES
        for module, line in imports(file)
        if module.startswith("torch.") and any(name.startswith("_") for name in module.split("."))
    ]
    assert not wrong, "one file with one reason at most: name it here"


def test_all_parts_come_from_this_checkout() -> None:
    import modelzoo
    import modelzoo.converters
    import modelzoo.layers
    import modelzoo.recipes

    for package, folder in (
        (modelzoo, "modelzoo"),
        (modelzoo.layers, "layers"),
        (modelzoo.converters, "converters"),
        (modelzoo.recipes, "recipes"),
    ):
        assert Path(str(package.__file__)) == ROOT / folder / "__init__.py", "install this checkout: pip install -e ."
