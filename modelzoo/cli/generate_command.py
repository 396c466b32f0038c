"""`modelzoo generate`: what a language model writes, as it is written or as JSON lines."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelzoo.cli.console import is_first_process, say
from modelzoo.cli.results import model_folder
from modelzoo.errors import ConfigError, InputError, listing

if TYPE_CHECKING:
    from modelzoo.data import Tokenizer
    from modelzoo.generation import GenerationSettings
    from modelzoo.models.model import Model

__all__ = ["generate"]


def generate(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Folder of a run, a Hugging Face folder, or a hub id.")],
    text: Annotated[list[str] | None, typer.Option(help="A prompt, or an encoder's input; may be given several times.")] = None,
    ids: Annotated[list[str] | None, typer.Option(help="Token ids instead, as '1 403 407'; needs no tokenizer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends a text; may be given several times.")] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the weights: auto (as in the file), float32, bfloat16, float16.")] = "auto",
    chat: Annotated[
        bool | None,
        typer.Option(help="Ask in the model's chat template, each --text as a user's question; a run on chats always does."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON line a sequence, also for a single prompt.")] = False,
) -> None:
    """Let a language model write: modelzoo generate MODEL --text "Once upon a time" max_new_tokens=64 do_sample=true.

    One prompt's text is shown while it is written; several, and --ids, give JSON lines.

    Settings: max_new_tokens=, min_new_tokens=, do_sample=, temperature=, top_k=, top_p=, min_p=, repetition_penalty=, num_beams=,
    length_penalty=, early_stopping=, num_return_sequences=, eos_token_id=, pad_token_id=, seed=.
    """
    if bool(text) == bool(ids):
        raise InputError("expected either --text TEXT or --ids 'ID ID'; found " + ("both" if text else "neither"))
    given = _settings(ctx.args) | ({"stop_strings": tuple(stop)} if stop else {})
    rows = [_ids(words) for words in ids or ()]
    from modelzoo.generation import GenerationSettings
    from modelzoo.generation.settings import settings_from
    from modelzoo.models.auto import from_pretrained

    settings: GenerationSettings = settings_from(None, given)
    if settings.return_scores:
        raise ConfigError("return_scores: is for programs; call modelzoo.generate from Python")
    loaded = from_pretrained(model_folder(model), dtype=dtype)
    prompts: list[str] | list[list[int]] = text or rows
    tokenizer = None
    if text and (_was_chat(model) if chat is None else chat):
        prompts, tokenizer, settings = _as_chat(loaded, text, settings)
    if as_json or ids or len(text or ()) > 1 or settings.num_return_sequences > 1 or settings.num_beams > 1:
        _write_lines(loaded, prompts, text or rows, tokenizer, settings)
    else:
        _write_live(loaded, prompts, tokenizer, settings)


def _was_chat(model: str) -> bool:
    """Whether a folder is that of a run on chats."""
    from modelzoo.training.forms import trained_form

    return trained_form(Path(model)) == "chat"


def _as_chat(
    model: "Model", texts: list[str], settings: "GenerationSettings"
) -> "tuple[list[list[int]], Tokenizer, GenerationSettings]":
    """Return texts as questions in the model's chat template, and settings under which an answer ends where the template says."""
    from modelzoo.data import load_tokenizer
    from modelzoo.generation.chat_prompts import chat_prompts

    assert model.source_folder is not None
    tokenizer = load_tokenizer(model.source_folder)
    prompts, ends = chat_prompts(tokenizer, texts)
    given = settings if settings.eos_token_id is not None else dataclasses.replace(settings, eos_token_id=ends)
    return prompts, tokenizer, given


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Return key=value words as options of generation.

    Raises:
        ConfigError: A word is none; the message lists all of them.
    """
    from modelzoo.config.overrides import parse_overrides

    problems: list[str] = []
    values = {setting.name: setting.value for setting in parse_overrides(words, problems)}
    if problems:
        raise ConfigError(f"cannot be used:\n{listing(problems)}")
    return values


def _ids(words: str) -> list[int]:
    try:
        return [int(word) for word in words.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"--ids {words!r}: expected integers with spaces between them") from None


def _write_live(
    model: "Model", prompts: list[str] | list[list[int]], tokenizer: "Tokenizer | None", settings: "GenerationSettings"
) -> None:
    from modelzoo.generation import stream

    for piece in stream(model, prompts, tokenizer=tokenizer, settings=settings):
        if is_first_process():
            typer.echo(piece, nl=False)
    say()


def _write_lines(
    model: "Model",
    prompts: list[str] | list[list[int]],
    shown: list[str] | list[list[int]],
    tokenizer: "Tokenizer | None",
    settings: "GenerationSettings",
) -> None:
    from modelzoo.generation import generate as write

    found = write(model, prompts, tokenizer=tokenizer, settings=settings)
    for row, ids in enumerate(found.new_ids):
        prompt = shown[row // settings.num_return_sequences]
        line: dict[str, Any] = {"prompt" if isinstance(prompt, str) else "prompt_ids": prompt}
        line |= {"text": found.texts[row]} if found.texts is not None else {}
        line["ids"] = ids
        line |= {"score": float(found.sequence_scores[row])} if found.sequence_scores is not None else {}
        say(json.dumps(line, ensure_ascii=False))
