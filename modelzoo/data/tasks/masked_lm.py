"""Masked language modelling: texts, of which some tokens are hidden anew in each epoch."""

from collections.abc import Mapping, Sequence

from modelzoo.data.columns import TEXT_NAMES, Form
from modelzoo.data.encoding import Encoding
from modelzoo.data.masking import MaskRule, mask_tokens
from modelzoo.data.tasks.cutting import Cut, special_around
from modelzoo.data.tasks.spec import EncodedRows, Item, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError, closest

__all__ = ["MASKED_LM"]


class _Masks:
    """Hides tokens of an item, as a function of (seed, epoch, row) alone."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        if tokenizer.mask_id is None:
            similar = closest("mask", tokenizer.get_vocab())
            hint = f" (its vocabulary has {similar[0]!r})" if similar else ""
            raise DataError(
                f"masked_lm needs a tokenizer with a mask token, found none{hint}; set mask_token in tokenizer_config.json"
            )
        self._rule = MaskRule(mask_id=tokenizer.mask_id, vocab_size=tokenizer.vocab_size, seed=seed)
        self._special_ids = tokenizer.special_ids
        self.share = self._rule.share

    def draw(self, ids: list[int], *, epoch: int, row: int) -> Item:
        """Return the ids with masks, and the hidden ones as labels."""
        maskable = [token_id not in self._special_ids for token_id in ids]
        masked, labels = mask_tokens(ids, maskable, self._rule, epoch=epoch, row=row)
        return {"input_ids": masked, "labels": labels}

    def lengths(self, count: int) -> tuple[int, int]:
        """Return the tokens of an item."""
        return count, 0


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    draws = _Masks(recipe.tokenizer, recipe.seed) if recipe.labelled else None
    texts = read_texts(rows, columns["text"], recipe.source)
    limit = None if recipe.truncation != "error" else recipe.max_length
    encodings = recipe.tokenizer.encode(texts, None, limit, recipe.truncation)
    special = recipe.tokenizer.special_ids
    empty = [row for row, encoding in enumerate(encodings) if special.issuperset(encoding.input_ids)]
    return EncodedRows(encodings=_in_pieces(encodings, texts, recipe), empty_rows=empty, draws=draws, form="masked")


def _in_pieces(encodings: list[Encoding], texts: list[str], recipe: Recipe) -> list[Encoding]:
    """Cut long texts into pieces that share no token, each with its special tokens."""
    long = [row for row, encoding in enumerate(encodings) if len(encoding.input_ids) > recipe.max_length]
    if not long:
        return encodings
    pieces: dict[int, list[Encoding]] = {row: [] for row in long}
    for piece in recipe.tokenizer.windows([texts[row] for row in long], max_length=recipe.max_length, stride=0):
        row = long[piece.row]
        pieces[row].append(Encoding(input_ids=piece.input_ids, token_type_ids=piece.token_type_ids, row=row))
    return [piece for row, encoding in enumerate(encodings) for piece in pieces.get(row, [encoding])]


def _cut(recipe: Recipe) -> Cut:
    """Return how `_in_pieces` cuts, for texts that are tokenized already."""
    around = special_around(recipe.tokenizer)
    added = sum(map(len, around))
    draws = _Masks(recipe.tokenizer, recipe.seed)

    def num_targets(counts: Sequence[int]) -> int:
        return round(draws.share * sum(count - added for count in counts))

    return Cut(form="masked", length=recipe.max_length - added, around=around, draws=draws, num_targets=num_targets)


MASKED_LM = TaskSpec(
    forms=(Form(task="masked_lm", roles={"text": TEXT_NAMES}, filled=frozenset({"text"})),),
    encode=_encode,
    cut=_cut,
    targets="token",
    scores_vocabulary=True,
)
