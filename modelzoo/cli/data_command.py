"""`modelzoo data show`: what the model will see of a recipe's rows."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelzoo.cli import completing as complete
from modelzoo.cli.console import columns, is_first_process, say, say_json
from modelzoo.errors import ConfigError
from modelzoo.quantities import counted

if TYPE_CHECKING:
    from modelzoo.cli.token_view import Piece, RowView
    from modelzoo.data import Samples, Tokenizer
    from modelzoo.data.image_dataset import ImageDataset

__all__ = ["data_show"]

STYLES = {"plain": "", "special": "dim cyan", "loss": "bold green", "masked": "bold magenta", "cut": "strike red"}
MARKS = {"plain": ("", ""), "special": ("", ""), "loss": ("{", "}"), "masked": ("{", "}"), "cut": ("-", "-")}
MEANINGS = {
    "special": "special token",
    "loss": "carries loss",
    "masked": "carries loss: to become the token behind the arrow",
    "cut": "cut off",
}
SHARES = (50, 90, 99)
MOST_ITEMS = 2000
"""Items that are looked at for ends of texts and unknown tokens."""
LABELS_OF_NOTE = 4
"""Labels that the one line about a split names."""
LEAST_UNKNOWN = 0.001


def data_show(
    ctx: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", autocompletion=complete.recipes, help="As for train; key=value after it changes a setting."
        ),
    ],
    rows: Annotated[int, typer.Option(min=1, help="How many of the first rows are shown.")] = 3,
    items: Annotated[
        str | None, typer.Option(help="These training items instead, from 0, as the errors of a run name them: 5121,88.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Show the first rows as the model will see them: tokens, which carry loss, what is cut off; lengths, labels and ends of texts.

    Of images: file, size, label, and what the pixels have become.

    modelzoo data show bert-boolq model=FOLDER data.train=FILE --rows 5

    On a terminal in colors; elsewhere {tokens in braces} carry loss and -tokens between dashes- are cut off.
    """
    from modelzoo.config import resolve_settings

    settings = resolve_settings(recipe, ctx.args).settings
    from modelzoo.cli.token_view import view_rows
    from modelzoo.data import load_tokenizer
    from modelzoo.data.image_dataset import ImageDataset
    from modelzoo.training.preparation import prepare

    prepared = prepare(settings)
    chosen = range(min(rows, len(prepared.train))) if items is None else _chosen(items, len(prepared.train))
    if isinstance(prepared.train, ImageDataset):
        _show_images(prepared, prepared.train, chosen, as_json=as_json)
        return
    tokenizer = load_tokenizer(prepared.pretrained.folder)
    views = view_rows(settings, prepared, tokenizer, chosen)
    if not is_first_process():
        return
    facts = {split: _facts(dataset, tokenizer) for split, dataset in _datasets(prepared)}
    if as_json:
        say_json({"rows": [_row_json(view) for view in views], "splits": facts})
        return
    for view in views:
        _say_row(view)
    for note in (*prepared.notes, *prepared.warnings):
        say(f" {note}")
    say("\n" + columns([["length in tokens", *(f"p{share}" for share in SHARES), "max"], *_length_rows(facts)]))
    for split, known in facts.items():
        _say_labels(split, known["labels"])
        if known["ends"] is not None:
            share, end = f"{known['ends']:.1%} of {counted(known['looked_at'], 'item')}", known["end_token"]
            say(f"\n end of text of {split}: {share} end in {end} with loss on it")
        if known["unknown"] >= LEAST_UNKNOWN:
            say(f"\n unknown tokens of {split}: {known['unknown']:.1%}; the tokenizer has no token for some of the text")


def _chosen(items: str, count: int) -> list[int]:
    """Return the numbers in a text like "5121, 88" or "[5121, 88]".

    Raises:
        ConfigError: One of them is no item.
    """
    words = [word.strip() for word in items.strip(" []").split(",")]
    for word in words:
        if not (word.isdecimal() and int(word) < count):
            raise ConfigError(f"--items: expected numbers of training items, 0 to {count - 1}, found {word}")
    return [int(word) for word in words]


def _show_images(prepared: Any, train: "ImageDataset", chosen: Sequence[int], *, as_json: bool) -> None:
    """Show images, and what there is of every label."""
    from modelzoo.cli.image_view import say_images, view_images

    if not is_first_process():
        return
    views = view_images(train, chosen)
    if as_json:
        facts = {split: {"items": len(some), "labels": dict(some.report.label_counts)} for split, some in _datasets(prepared)}
        say_json({"rows": views, "splits": facts})
        return
    say_images(views)
    for note in (*prepared.notes, *prepared.warnings):
        say(f" {note}")
    for split, some in _datasets(prepared):
        _say_labels(split, some.report.label_counts)


def _say_labels(split: str, counts: dict[str, int]) -> None:
    """Say how often each label stands, where the note of the split has not said all."""
    if len(counts) > LABELS_OF_NOTE:
        shown = sorted(counts.items(), key=lambda item: -item[1])[:20]
        say(f"\n labels of {split}: " + ", ".join(f"{name} {count:,}" for name, count in shown))


def _datasets(prepared: Any) -> list[tuple[str, "Samples"]]:
    found = [("train", prepared.train)]
    found += [
        (name, one.dataset) for name, one in (("validation", prepared.evaluation), ("test", prepared.test)) if one is not None
    ]
    return found


def _facts(dataset: "Samples", tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return lengths, labels, and how many items teach the model to stop."""
    ordered = sorted(dataset.lengths)
    lengths = {f"p{share}": ordered[min(len(ordered) * share // 100, len(ordered) - 1)] for share in SHARES}
    found = {"items": len(dataset), "lengths": {**lengths, "max": ordered[-1]}, "labels": dict(dataset.report.label_counts)}
    ends, end_token = None, None
    looked_at = range(0, len(dataset), -(-len(dataset) // MOST_ITEMS))  # spread over all of them
    if dataset.task in ("causal_lm", "seq2seq_lm") and tokenizer.eos_id is not None:
        taught = sum(_last_target(dataset.item(index)) == tokenizer.eos_id for index in looked_at)
        ends, end_token = taught / len(looked_at), tokenizer.tokens([tokenizer.eos_id])[0]
    return {
        **found,
        "ends": ends,
        "looked_at": len(looked_at),
        "end_token": end_token,
        "unknown": _unknown_share(dataset, tokenizer),
    }


def _unknown_share(dataset: "Samples", tokenizer: "Tokenizer") -> float:
    """Return the share of tokens that stand for text without a token, among the first items."""
    from modelzoo.cli.token_view import flat_ids

    if tokenizer.unk_id is None or tokenizer.unk_id in (
        tokenizer.eos_id,
        tokenizer.bos_id,
    ):  # GPT-2's one special token is all three
        return 0.0
    rows = [dataset.item(index)["input_ids"] for index in range(min(len(dataset), MOST_ITEMS))]
    ids = [token_id for row in rows for token_id in flat_ids(row)]
    return ids.count(tokenizer.unk_id) / len(ids)


def _last_target(item: dict[str, Any]) -> int | None:
    labels = item.get("labels")
    targets = [label for label in labels if label >= 0] if isinstance(labels, list) else []
    return targets[-1] if targets else None


def _length_rows(facts: dict[str, dict[str, Any]]) -> list[list[str]]:
    return [[split, *(str(value) for value in known["lengths"].values())] for split, known in facts.items()]


def _say_row(view: "RowView") -> None:
    label = f" · label {view.label}" if view.label else ""
    loss = view.count("loss") + view.count("masked")
    cut = f" · {view.count('cut')} cut off" if view.count("cut") else ""
    kept = len(view.pieces) - view.count("cut")
    say(f"row {view.row} · {counted(kept, 'token')}{f' · {loss} with loss' if loss else ''}{cut}{label}")
    _say_pieces(view.pieces)
    if view.target:
        say(" target")
        _say_pieces(view.target)
    say()


def _say_pieces(pieces: Sequence["Piece"]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        say(" " + " ".join(_marked(piece) for piece in pieces))
        return
    text = Text()
    for piece in pieces:
        text.append(f"{piece.text}{f'→{piece.target}' if piece.target else ''} ", style=STYLES[piece.kind])
    kinds = [kind for kind in MEANINGS if any(piece.kind == kind for piece in pieces)]
    console.print(text, width=min(shutil.get_terminal_size().columns, 120))
    legend = Text(" ")
    for kind in kinds:
        legend.append(MEANINGS[kind], style=STYLES[kind])
        legend.append("   ")
    console.print(legend)


def _marked(piece: "Piece") -> str:
    before, after = MARKS[piece.kind]
    return f"{before}{piece.text}{f'→{piece.target}' if piece.target else ''}{after}"


def _row_json(view: "RowView") -> dict[str, Any]:
    return {
        "row": view.row,
        "label": view.label or None,
        "tokens": [piece._asdict() for piece in view.pieces],
        "target": [piece._asdict() for piece in view.target],
    }
