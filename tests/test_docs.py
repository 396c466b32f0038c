"""Every Python block of the README and of docs/ runs, page by page, from top to bottom."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_of_the_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    blocks = [(match.group(1), text.count("\n", 0, match.start()) + 1) for match in BLOCK.finditer(text)]
    if not blocks:
        pytest.skip("the page has no Python block")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for code, line in blocks:
        source = "\n" * line + code  # so that a traceback shows the page's own line
        exec(compile(source, str(page), "exec"), names)
