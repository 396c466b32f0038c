"""`modelzoo export`: a run's result as a new folder for others, with the proof in its card; and what can serve it."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from modelzoo.cli.chat_export import learned_chats, prompt_shown, replay
from modelzoo.cli.console import columns, say
from modelzoo.cli.results import model_folder, quiet_transformers
from modelzoo.errors import CheckpointError, ConfigError, SaveError

__all__ = ["export"]

CARD = "README.md"


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run that is finished, or a folder in Hugging Face's form.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="New folder; an existing one is never touched.")],
    to: Annotated[
        Literal["hf", "peft", "merged"], typer.Option(help="The folder; of an adapter: peft, or merged into its base.")
    ] = "hf",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with transformers, or of an adapter with peft; the figures go into the card.")
    ] = False,
    untie: Annotated[
        bool, typer.Option("--untie", help="With --to merged: two tables where one looked up and scored the vocabulary.")
    ] = False,
) -> None:
    """Write a run's result as a folder of its own: weights, tokenizer, card; say which programs take it.

    modelzoo export runs/bert-boolq-001 my-boolq --verify

    An adapter is exported as it is with --to peft, or with --to merged as a plain model, summed in float32. Where it changes a
    token table that is also the head, --untie writes two tables.
    """
    source = _source(run)
    is_adapter = (source / "adapter_config.json").is_file()
    if is_adapter == (to == "hf"):
        found, choice = ("an adapter", "--to peft or --to merged") if is_adapter else ("a plain model", "--to hf")
        asked = "" if to == "hf" else f"--to {to}: "
        raise ConfigError(f"{asked}{source} is {found}; use {choice}")
    if untie and to != "merged":
        raise ConfigError("--untie writes a merged adapter's table apart from its head; use --to merged --untie, or leave it out")
    _write(source, target, to, untied=untie)
    if verify:
        _verify(target)
    chat_rows = _chat_rows(Path(run), target, verify=verify)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    from modelzoo.report.serving import served_by

    architecture = str(next(iter(config.get("architectures") or []), ""))
    rows = [["wrote", str(target)]]
    if to != "peft":
        rows += [["takes it", f"{server}: {use or 'no'}"] for server, use in served_by(architecture).items()]
    rows += chat_rows
    rows.append(["next", f"modelzoo push {target} USER/NAME"])
    say(columns(rows, indent=0, gap=4))


def _chat_rows(run: Path, target: Path, *, verify: bool) -> list[list[str]]:
    """Return how a model that learned chats is asked, and with `verify` what a replay of its rows gave, which the card gets too."""
    if not learned_chats(run):
        return []
    rows = [["asks", prompt_shown(target)]]
    if verify:
        text = replay(run, target)
        rows.append(["replayed", text])
        with (target / CARD).open("a", encoding="utf-8") as card:
            card.write(f"\nReplayed: {text}.\n")
    return rows


def _source(run: str) -> Path:
    """Return the folder of the result.

    Raises:
        CheckpointError: There is none.
    """
    path = Path(run)
    if (path / "resolved.yaml").is_file() and not (path / "final").is_dir():
        raise CheckpointError(f"{run}: the run is not finished, it has no final/; continue it with: modelzoo resume {run}")
    source = path / "final" if (path / "final").is_dir() else Path(model_folder(run))
    if not (source / "config.json").is_file():
        raise CheckpointError(
            f"{run}: expected a finished run or a folder with config.json; found {'neither' if path.exists() else 'nothing'}"
        )
    return source


def _write(source: Path, target: Path, to: str, *, untied: bool) -> None:
    """Write the folder, all of it or nothing.

    Raises:
        SaveError: The target is in use, or the disk is full or fails.
    """
    from modelzoo.hub.publish import copy_folder, require_target

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SaveError(f"{target} exists already and is left as it is; choose another DST")
    require_target(target, overwrite=False)
    if to == "merged":
        from modelzoo.models.adapted import write_merged

        write_merged(source, target, untied=untied)
    elif to == "peft":
        from modelzoo.models.adapted import write_peft

        write_peft(source, target)
    else:
        copy_folder(source, target)
    if to != "hf" and (source / CARD).is_file() and not (target / CARD).is_file():
        text = (source / CARD).read_text(encoding="utf-8")
        (target / CARD).write_text(_merged_card(text) if to == "merged" else text, encoding="utf-8")


def _merged_card(text: str) -> str:
    """Return an adapter's card as that of the plain model that it became."""
    lines = [line for line in text.splitlines() if line != "from transformers import AutoTokenizer"]
    plain = "\n".join(lines).replace("library_name: peft", "library_name: transformers").replace("AutoPeftModel", "AutoModel")
    return re.sub(r"(?m)^from peft import (\w+)$", r"from transformers import \1, AutoTokenizer", plain) + "\n"


def _verify(target: Path) -> None:
    """Compare with transformers or peft, say it, and write it into the card.

    Raises:
        Exit: They differ; the exit code is 1.
    """
    from modelzoo.adapter_verification import verify_adapter
    from modelzoo.verification import verify

    quiet_transformers()
    is_adapter = (target / "adapter_config.json").is_file()
    found = verify_adapter(target) if is_adapter else verify(target, local_files_only=True)
    differences = ", ".join(f"{name} {value:.1e}" for name, value in found.outputs.items())
    same = "" if found.agreement is None else f"; the largest logit is the same one at {found.agreement:.2%} of the places"
    owner = "" if is_adapter else " of transformers"
    text = f"{found.reference}{owner} against modelzoo on one batch in float32: largest difference {differences}{same}. "
    equal = "Equal" if found.is_equal else "NOT equal"
    text += f"{equal} within {found.tolerance:g}, where values exceed 1 within that share of the largest."
    say(f"verified  {text}")
    card = target / CARD
    before = card.read_text(encoding="utf-8") if card.is_file() else f"# {target.name}\n"
    card.write_text(f"{before.rstrip()}\n\n## Verified\n\n{text}\n", encoding="utf-8")
    if not (found.is_equal and found.is_strict):
        raise typer.Exit(1)
