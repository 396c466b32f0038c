"""The ranks of a run that a Python program or a notebook asks for: processes of their own, whose first one is heard here.

A process that has used torch cannot become several: what it holds (threads, an accelerator) does not survive a fork. So each rank
is the command, as from a shell.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelzoo import errors
from modelzoo.launch.processes import launch
from modelzoo.launch.verdict import INTERRUPTED, STOPPED

__all__ = ["train_on_ranks"]

OF_EXIT_CODE = {
    kind.exit_code: kind
    for kind in (errors.InputError, errors.SaveError, errors.RankError, errors.NonFiniteError, errors.OutOfMemoryError)
}


def train_on_ranks(recipe: str, ranks: int, *, hears: Callable[[str], None] | None = None) -> Path:
    """Train on several processes of this machine, and return the folder of the run, finished or saved in the middle (Ctrl-C).

    Args:
        recipe: Text of a recipe in YAML, whose paths are absolute.
        ranks: At least 2.
        hears: Is told each line that rank 0 says; None writes them to this process's stderr.

    Raises:
        InputError: Something that was given cannot be used; nothing was written.
        SaveError: Something could not be written.
        RankError: A process was lost or failed.
        NonFiniteError: A loss or a gradient was NaN or infinite.
        OutOfMemoryError: Memory ran out.
        KeyboardInterrupt: Ctrl-C came before there was anything to save.
    """
    output: list[str] = []
    failures: list[str] = []

    def told(stream: str, line: str) -> None:
        if stream == "stdout":
            output.append(line)
        elif hears is not None:
            hears(line)
        else:
            sys.stderr.write(f"{line}\n")

    with tempfile.TemporaryDirectory(prefix="modelzoo-recipe-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(recipe, encoding="utf-8")
        code = launch(["train", str(file), "--json"], ranks, say_error=failures.append, hears=told)
    if code in (0, *STOPPED) and output:
        result: dict[str, Any] = json.loads("\n".join(output))
        return Path(result["folder"])
    if code == INTERRUPTED:
        raise KeyboardInterrupt("\n".join(failures))
    raise OF_EXIT_CODE.get(code, errors.RankError)("\n".join(failures) or f"the ranks ended with exit code {code}")
