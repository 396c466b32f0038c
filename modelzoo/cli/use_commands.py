"""`modelzoo eval` and `modelzoo predict`: a trained model on rows of your own."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelzoo.cli.console import columns, is_first_process, say, say_json
from modelzoo.cli.row_settings import read_row_settings
from modelzoo.quantities import counted

if TYPE_CHECKING:
    from modelzoo.data import Samples

__all__ = ["evaluate", "predict"]

ModelOrRun = Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Folder of a run, a Hugging Face folder, or a hub id.")]


def evaluate(
    ctx: typer.Context,
    model: ModelOrRun,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Metrics of a model on labelled rows: modelzoo eval runs/bert-boolq-001 data=FILE.

    Settings: data=FILE (without it the validation rows of the run), split=, columns.label=COLUMN, max_length=, max_rows=,
    batch_tokens=, task=, and for a language model max_new_tokens= of each row, to compare what it writes.
    """
    settings = read_row_settings(ctx.args)
    from modelzoo.training import evaluate as measure

    judged: dict[str, Any] = {}

    def hear(name: str, samples: "Samples") -> None:
        judged.update(name=name, split=settings.split, fingerprint=samples.fingerprint, **dataclasses.asdict(samples.report))
        if not as_json:
            say(f"rows     {name}: {samples.describe()}")

    values = measure(
        model,
        settings.rows,
        split=settings.split,
        task=settings.task,  # type: ignore[arg-type] # any text is a task here; it is checked where used
        columns=settings.columns,
        max_length=settings.max_length,
        max_rows=settings.max_rows,
        batch_tokens=settings.batch_tokens,
        max_new_tokens=settings.max_new_tokens,
        on_rows=hear,
    )
    if as_json:
        say_json({"rows": judged, **values})
    else:
        say(columns([[name, f"{value:.4f}"] for name, value in values.items()]))


def predict(
    ctx: typer.Context,
    model: ModelOrRun,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given several times.")] = None,
    pair: Annotated[list[str] | None, typer.Option(help="The second text of each --text: a passage, a context.")] = None,
    file: Annotated[str | None, typer.Option(help="Rows instead: jsonl, csv, parquet.")] = None,
    output: Annotated[Path | None, typer.Option(help="New .jsonl file for the predictions; by default they are printed.")] = None,
) -> None:
    """Say what a model makes of texts, one JSON line each.

    modelzoo predict RUN --text "is it open" --pair "It is closed on Sundays."

    Settings, as for eval: columns.text_a=COLUMN, max_length=, batch_tokens=, max_new_tokens=, task=.
    """
    from modelzoo.errors import InputError

    settings = read_row_settings(ctx.args, without={"max_rows"})
    given = file or settings.rows
    if (given is None) == (not text):
        raise InputError("expected either --text TEXT or --file FILE; found " + ("both" if text else "neither"))
    if pair and len(pair) != len(text or ()):
        raise InputError(f"expected one --pair for each --text; found {len(pair)} for {len(text or ())}")
    if output is not None and output.exists():
        raise InputError(f"{output} exists already and is left as it is; choose another --output")
    from modelzoo.training import predict as say_of

    found = say_of(
        model,
        given if given is not None else _rows(text or [], pair),
        split=settings.split,
        task=settings.task,  # type: ignore[arg-type] # any text is a task here; it is checked where used
        columns=settings.columns if given is not None else {},
        max_length=settings.max_length,
        batch_tokens=settings.batch_tokens,
        max_new_tokens=settings.max_new_tokens,
    )
    if is_first_process():
        _write(found, output)


def _rows(texts: Sequence[str], pairs: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return texts as rows under the name that each task looks for, so that the task need not be known here."""
    rows: list[dict[str, Any]] = [{"text_a": text, "text": text, "question": text, "tokens": text.split()} for text in texts]
    for row, pair in zip(rows, pairs or (), strict=False):
        row |= {"text_b": pair, "context": pair}
    return rows


def _write(predictions: Sequence[dict[str, Any]], output: Path | None) -> None:
    """Write predictions as JSON lines, to a new file or to stdout.

    Raises:
        SaveError: The file cannot be written.
    """
    from modelzoo.errors import SaveError

    lines = [json.dumps(prediction, ensure_ascii=False) for prediction in predictions]
    if output is None:
        say("\n".join(lines))
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise SaveError(f"{output} cannot be written: {error.strerror}") from None
    say(f"wrote {counted(len(lines), 'prediction')} to {output}")
