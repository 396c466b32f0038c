"""What the site has beyond docs/*.md: a page for each recipe's README and for each package's names, and links that stay inside."""

import ast
import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = (
    "modelzoo",
    "modelzoo.config",
    "modelzoo.data",
    "modelzoo.layers",
    "modelzoo.hub",
    "modelzoo.runtime",
    "modelzoo.training",
    "modelzoo.plan",
    "modelzoo.generation",
    "modelzoo.adapters",
    "modelzoo.models.model",
    "modelzoo.verification",
    "modelzoo.errors",
)
TOP_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
WIDE = ".md-grid { max-width: 80rem; }  /* lines of code of a hundred characters */\n"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:]+?)(#[^)\s]*)?\)")


@event_priority(100)  # before the plugin takes its paths
def on_config(config: Any) -> Any:
    """Complete the navigation, and lay the source tree out as it is imported, for what reads the docstrings."""
    nav, named = [], set()
    for entry in config.nav:
        [(title, items)] = entry.items()
        if items == "api/":
            items = [f"api/{name}.md" for name in REFERENCE]
        items = [item for item in items if not _is_missing(item)]
        named |= {item if isinstance(item, str) else next(iter(item.values())) for item in items}
        nav.append({title: items})
    more = sorted(file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md"))
    nav.append({"Recipes": [f"recipes/{name}.md" for name in recipe_names()]})
    nav.append({"More": [*(page for page in more if page not in named), *TOP_PAGES.values()]})
    config.nav = nav
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(imported_tree())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from other files."""
    for name in REFERENCE:
        files.append(File.generated(config, f"api/{name}.md", content=reference(name)))
    for name in recipe_names():
        files.append(File.generated(config, f"recipes/{name}.md", content=(ROOT / "recipes" / name / "README.md").read_text()))
    for source, page in TOP_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "wide.css", content=WIDE))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links of the site, or into the file's name where the site has no such page."""
    here = next((ROOT / "recipes" / name for name in recipe_names() if page.file.src_uri == f"recipes/{name}.md"), None)
    here = here or (ROOT if page.file.src_uri in TOP_PAGES.values() else (DOCS / page.file.src_uri).parent)
    depth = page.file.src_uri.count("/")

    def inside(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        file = Path(os.path.normpath(here / target))
        place = page_of(file)
        if place is not None:
            return f"[{text}]({'../' * depth}{place}{anchor})"
        return f"`{file.relative_to(ROOT)}`" if file.exists() else match[0]

    return LINK.sub(inside, markdown)


def page_of(file: Path) -> str | None:
    """Return the site's page of a file of the repository, or None."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    if file.name == "README.md" and file.parent.parent == ROOT / "recipes":
        return f"recipes/{file.parent.name}.md"
    return TOP_PAGES.get(file.name) if file.parent == ROOT else "index.md" if file == ROOT / "README.md" else None


def reference(package: str) -> str:
    """Return the page of a package or module: its docstring's first lines, and every name of its `__all__`."""
    place = ROOT.joinpath("layers" if package == "modelzoo.layers" else package.replace(".", "/"))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(file.read_text())
    summary = (ast.get_docstring(tree) or "").split("\n\n")[0]
    blocks = [f"::: {package}.{name}" for name in public_names(tree)]
    return "\n\n".join([f"# {package}", summary, *blocks]) + "\n"


def public_names(tree: ast.Module) -> list[str]:
    """Return the public names of an `__init__.py`, classes first as they sort; for modelzoo those of its table of homes."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in {"_HOMES", "__all__"}:
            value = (
                node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts if isinstance(node.value, ast.List) else []
            )
            return [item.value for item in value if isinstance(item, ast.Constant)]
    return []


def recipe_names() -> list[str]:
    """Return the recipes that ship with the project and say what they measured."""
    return sorted(file.parent.name for file in (ROOT / "recipes").glob("*/README.md"))


def imported_tree() -> Path:
    """Return a copy of the sources in which layers/, converters/ and recipes/ stand below modelzoo/, as they are imported."""
    folder = Path(tempfile.mkdtemp(prefix="modelzoo-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, place in (("modelzoo", "."), ("layers", "layers"), ("converters", "converters")):
        for file in (ROOT / name).rglob("*.py"):
            copy = folder / "modelzoo" / place / file.relative_to(ROOT / name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return folder


def _is_missing(item: Any) -> bool:
    name = item if isinstance(item, str) else next(iter(item.values()))
    return not name.startswith("api/") and not (DOCS / name).is_file()
