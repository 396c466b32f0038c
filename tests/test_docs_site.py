"""The pages as a site: built without a warning, complete, and readable without a network."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings")
PACKAGES = ("adapters", "config", "data", "errors", "generation", "hub", "layers", "plan", "runtime", "training", "verification")

missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: pip install 'modelzoo-hub[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once; a warning of any kind fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", "docs/site/mkdocs.yml", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert "WARNING" not in said, said
    return folder


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        target = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / target).is_file()
        assert f'href="{target}"' in index or target == "index.html", f"{target} is not in the navigation"
    for recipe in (ROOT / "recipes").glob("*/README.md"):
        assert (site / "recipes" / f"{recipe.parent.name}.html").is_file()


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_public_name_is_in_the_reference(site: Path, package: str) -> None:
    name = f"modelzoo.{package}".rstrip(".")
    text = (site / "api" / f"{name}.html").read_text()
    names = [each for each in importlib.import_module(name).__all__ if not each.startswith("__")]
    assert names
    assert not [each for each in names if f'id="{name}.{each}"' not in text]


def test_nothing_is_fetched_when_a_page_is_read(site: Path) -> None:
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text()):
            is_canonical = 'rel="canonical"' in tag
            assert is_canonical or not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag), f"{page.relative_to(site)}: {tag}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", style.read_text()), style.name


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r'<a\b[^>]*\bhref="(?![a-z]+:)([^"#?]+)', page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"
