"""Rows as their tokens: which are special, which carry loss, and which were cut off."""

import dataclasses
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from modelzoo.config import RunSettings
    from modelzoo.data import Samples, Tokenizer
    from modelzoo.training.preparation import Prepared

__all__ = ["Kind", "Piece", "RowView", "flat_ids", "view_rows"]

Kind = Literal["plain", "special", "loss", "masked", "cut"]
IGNORED = -100
MOST_CUT = 4096
"""Tokens of a whole row that are looked through for what was cut."""


class Piece(NamedTuple):
    """A token."""

    text: str
    kind: Kind
    target: str = ""
    """What is to be said of it, where that is another token or a label."""


@dataclasses.dataclass(frozen=True)
class RowView:
    """One item of the data.

    Args:
        row: Its row, counted from 1.
        pieces: Its tokens, those that were cut off among them.
        target: Tokens of what a decoder writes; empty for other tasks.
        label: Of the whole item; "" where there is none.
    """

    row: int
    pieces: tuple[Piece, ...]
    target: tuple[Piece, ...]
    label: str

    def count(self, kind: Kind) -> int:
        """Return how many of its tokens, those of the target included, are of a kind."""
        return sum(piece.kind == kind for piece in (*self.pieces, *self.target))


def view_rows(settings: "RunSettings", prepared: "Prepared", tokenizer: "Tokenizer", chosen: Sequence[int]) -> list[RowView]:
    """Return training items as they are trained on.

    Args:
        settings: Of the run.
        prepared: Its data.
        tokenizer: Of the model.
        chosen: Numbers of the items.
    """
    dataset = prepared.train
    cut = _whole(settings, prepared, tokenizer, chosen)
    return [_view(dataset, index, tokenizer, cut.get(dataset.rows[index])) for index in chosen]


def _view(dataset: "Samples", index: int, tokenizer: "Tokenizer", whole: Sequence[int] | None) -> RowView:
    item = dataset.item(index)
    ids = flat_ids(item["input_ids"])
    labels = item.get("labels")
    has_decoder = "decoder_attention_mask" in item
    pieces = _pieces(ids, labels if isinstance(labels, list) and not has_decoder else None, dataset, tokenizer)
    if "start_positions" in item:
        span = range(item["start_positions"], item["end_positions"] + 1)
        pieces = [piece._replace(kind="loss") if place in span else piece for place, piece in enumerate(pieces)]
    if whole is not None:
        pieces = _with_cut(pieces, ids, whole, tokenizer)
    target = _pieces(labels, labels, dataset, tokenizer) if has_decoder and isinstance(labels, list) else []
    label = dataset.label_names[labels] if isinstance(labels, int) and labels < len(dataset.label_names) else ""
    return RowView(dataset.rows[index] + 1, tuple(pieces), tuple(target), label)


def flat_ids(ids: Sequence[Any]) -> list[int]:
    """Return the ids of an item, those of its choices one after another."""
    return [token_id for part in ids for token_id in flat_ids(part)] if ids and isinstance(ids[0], list) else list(ids)


def _pieces(ids: Sequence[int], labels: Sequence[int] | None, dataset: "Samples", tokenizer: "Tokenizer") -> list[Piece]:
    """Return the tokens, with what each is to become where it carries loss."""
    texts, special = tokenizer.tokens(ids), tokenizer.special_ids
    found: list[Piece] = []
    for place, (token_id, text) in enumerate(zip(ids, texts, strict=True)):
        label = IGNORED if labels is None else labels[place]
        if label == IGNORED:
            found.append(Piece(text, "special" if token_id in special else "plain"))
        elif dataset.label_names:
            found.append(Piece(text, "loss", dataset.label_names[label]))
        else:
            is_other = label != token_id
            found.append(Piece(text, "masked" if is_other else "loss", tokenizer.tokens([label])[0] if is_other else ""))
    return found


def _with_cut(pieces: list[Piece], ids: Sequence[int], whole: Sequence[int], tokenizer: "Tokenizer") -> list[Piece]:
    """Put the tokens that were cut off where they stood."""
    found: list[Piece] = []
    matcher = SequenceMatcher(None, list(whole[:MOST_CUT]), list(ids), autojunk=False)
    for _, start, end, first, last in matcher.get_opcodes():
        kept = pieces[first:last]
        # of a replaced stretch the kept tokens stand first: what was cut is the tail of its text
        found += kept
        if last - first < end - start:
            found += [Piece(text, "cut") for text in tokenizer.tokens(whole[start + last - first : end])]
    return found


def _whole(settings: "RunSettings", prepared: "Prepared", tokenizer: "Tokenizer", chosen: Sequence[int]) -> dict[int, list[int]]:
    """Return the ids of some items' rows without a limit, of those that lost some; none for windows, which lose nothing."""
    from modelzoo.data import read_rows
    from modelzoo.data.dataset import TokenizedDataset
    from modelzoo.data.limits import DataLimits
    from modelzoo.data.tasks import Recipe

    dataset = prepared.train
    has_choices = settings.model.task == "multiple_choice" or dataset.form == "choice"
    if has_choices or settings.data.form or len(set(dataset.rows)) != len(dataset.rows) or not dataset.report.truncated_rows:
        return {}
    data = settings.data
    wanted = sorted({dataset.rows[index] for index in chosen})
    read = read_rows(data.train or data.name or "", split=None if data.train else "train", max_rows=wanted[-1] + 1)
    rows = [read[row] for row in wanted]
    recipe = Recipe(
        task=settings.model.task,
        tokenizer=tokenizer,
        max_length=2**20,
        columns=data.columns,
        template=data.template,
        label_names=dataset.label_names or None,
        source=dataset.source,
        seed=settings.train.seed,
    )
    unlimited = TokenizedDataset.from_rows(rows, recipe, DataLimits())
    places = {dataset.rows[index]: index for index in chosen}
    found = {}
    for place, number in enumerate(unlimited.rows):
        ids, row = unlimited.item(place)["input_ids"], wanted[number]
        if row in places and len(ids) > len(dataset.item(places[row])["input_ids"]):
            found[row] = ids
    return found
