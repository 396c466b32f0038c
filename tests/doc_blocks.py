"""The code blocks of the pages, and the commands in them."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
"""What a reader of the project is told; recipes' own pages are added where their commands are looked at."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- not run: (?P<reason>[^\n]+?) -->\s*\Z")
_HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?")
_ENVIRONMENT = re.compile(r"[A-Z_][A-Z0-9_]*=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language and text, and why it is not run, if a comment before it says so."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        mark = _MARK.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match["language"], textwrap.dedent(match["text"]), mark["reason"] if mark else None))
    return found


def commands_in(script: str) -> Iterator[list[str]]:
    """The commands of a shell script, each as its words: without comments, variables before it, and texts given to it."""
    lines = iter(script.replace("\\\n", " ").splitlines())
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
        if (document := _HERE_DOCUMENT.search(line)) is not None:
            for inner in lines:
                if inner.strip() == document[1]:
                    break
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;"):
                while command and _ENVIRONMENT.fullmatch(command[0]):
                    command.pop(0)
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def without_comments(script: str) -> str:
    """A script or program without its comments, for comparing translations."""
    lines = (re.sub(r"(^|\s+)#.*$", "", line).rstrip() for line in script.splitlines())
    return "\n".join(line for line in lines if line)
