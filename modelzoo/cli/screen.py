"""The one screen that `modelzoo` shows: every command in its group, with what it takes and what it does."""

import dataclasses
from collections.abc import Callable, Sequence

from modelzoo.cli.console import columns

__all__ = ["Command", "first_screen"]


@dataclasses.dataclass(frozen=True)
class Command:
    """One command of `modelzoo`.

    Args:
        group: Heading under which it stands on the first screen.
        function: What it runs; its docstring is the help.
        usage: Its arguments as the first screen shows them.
        summary: What it does, in a few words.
        takes_settings: Whether words beside its own options are key=value settings.
        name: What is typed, two words for a command of a group; by default the function's name.
        line: What the first screen shows in place of `modelzoo NAME USAGE`.
        is_named: Whether it has a line of its own on the first screen; else the line of one before it names it.
    """

    group: str
    function: Callable[..., None]
    usage: str = ""
    summary: str = ""
    takes_settings: bool = False
    name: str = ""
    line: str = ""
    is_named: bool = True

    @property
    def word(self) -> str:
        """What is typed after `modelzoo`."""
        return self.name or self.function.__name__


def first_screen(version: str, commands: Sequence[Command]) -> str:
    """Return the text of the first screen, at most 24 lines of at most 100 characters.

    Args:
        version: Version of modelzoo.
        commands: All commands, in the order of the screen.
    """
    rows, heading = [], ""
    for command in commands:
        if not command.is_named:
            continue
        shown = command.group if command.group != heading else ""
        heading = command.group
        rows.append([shown, command.line or f"modelzoo {command.word} {command.usage}".rstrip(), command.summary])
    return "\n".join(
        [
            f"modelzoo {version}: fine-tune Hugging Face's models, exactly as they are there, on one process or many",
            "",
            columns(rows),
            "",
            " modelzoo COMMAND --help says more · --debug shows an error's traceback · --install-completion for your shell",
        ]
    )
