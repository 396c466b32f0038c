"""GLM's inputs: a text with a mask, and the blank that is written for it or learnt.

The blank begins with <|startofpiece|>. Its tokens have the position of the text's first mask, and a second one that counts within
the blank; the text sees itself on both sides, the blank the text and what stands before in it (Du et al., 2022, section 2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modelzoo.data.glm_pieces import GLM_MASKS
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["BlankBatch", "glm_prompts", "glm_training_batch"]


@dataclass(frozen=True, slots=True)
class BlankBatch:
    """What `GLM10B.forward` takes; each (B, T)."""

    ids: Tensor
    """int64."""
    mask: Tensor
    """bool."""
    context: Tensor
    """bool: the text."""
    position_ids: Tensor
    """int64: place in the text, or of the blank's mask."""
    block_position_ids: Tensor
    """int64: place in the blank, from 1; 0 in the text."""
    labels: Tensor | None = None
    """int64: the blank's tokens and its end; -100 elsewhere. None for prompts."""

    def inputs(self) -> dict[str, Tensor]:
        """Return the arguments of `GLM10B.forward`."""
        given = {"input_ids": self.ids, "attention_mask": self.mask, "context": self.context}
        places = {"position_ids": self.position_ids, "block_position_ids": self.block_position_ids}
        return {**given, **places, **({} if self.labels is None else {"labels": self.labels})}


def glm_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> BlankBatch:
    """Return texts with a blank that has just begun, padded on the left.

    Args:
        tokenizer: GLM's.
        texts: Each with [MASK], [sMASK] or [gMASK]; the blank is for the first of them.

    Raises:
        DataError: A text has no mask; the row is counted from 1.
    """
    blanks: list[list[int]] = [[] for _ in texts]
    return _built(tokenizer, texts, blanks, is_left=True)


def glm_training_batch(
    tokenizer: Tokenizer, texts: Sequence[str], targets: Sequence[str], *, max_target: int | None = None
) -> BlankBatch:
    """Return texts with what their blanks hold as labels, padded on the right.

    Args:
        tokenizer: GLM's.
        texts: As in `glm_prompts`.
        targets: What stands in the blank, a text each.
        max_target: Tokens of a blank at most, its end included; None for no limit.

    Raises:
        DataError: A text has no mask, or there are not as many targets as texts.
    """
    if len(targets) != len(texts):
        raise DataError(f"expected a target for each text, found {len(targets)} targets and {len(texts)} texts")
    assert tokenizer.eos_id is not None
    bare = tokenizer.num_special_tokens()
    encoded = [each.input_ids for each in tokenizer.encode(targets)]
    # [CLS] in front and <|endoftext|> behind are the text's alone.
    blanks = [[*ids[1 : len(ids) - bare + 1], tokenizer.eos_id][:max_target] for ids in encoded]
    return _built(tokenizer, texts, blanks, is_left=False)


def _built(tokenizer: Tokenizer, texts: Sequence[str], blanks: Sequence[Sequence[int]], *, is_left: bool) -> BlankBatch:
    assert tokenizer.bos_id is not None
    vocabulary = tokenizer.get_vocab()
    masks = {vocabulary[name] for name in GLM_MASKS}
    rows: list[list[list[int]]] = []  # ids, context, places, places in the blank, labels
    for row, encoding in enumerate(tokenizer.encode(texts)):
        ids = encoding.input_ids
        place = next((at for at, token in enumerate(ids) if token in masks), None)
        if place is None:
            raise DataError(f"row {row + 1}: {texts[row][:60]!r} has none of {', '.join(GLM_MASKS)}, for which a blank is written")
        size, blank = len(ids), blanks[row]
        rows.append(
            [
                [*ids, tokenizer.bos_id, *blank],
                [1] * size + [0] * (1 + len(blank)),
                [*range(size), *[place] * (1 + len(blank))],
                [0] * size + list(range(1, len(blank) + 2)),
                [-100] * (size + 1) + list(blank),
            ]
        )
    width = max(len(row[0]) for row in rows)

    def padded(index: int, empty: int) -> Tensor:
        missing = [[empty] * (width - len(row[index])) for row in rows]
        both = [(row[index], space) for row, space in zip(rows, missing, strict=True)]
        return torch.tensor([space + values if is_left else values + space for values, space in both])

    rows = [[*row, [1] * len(row[0])] for row in rows]
    return BlankBatch(
        ids=padded(0, tokenizer.pad_id or 0),
        mask=padded(5, 0).bool(),
        context=padded(1, 0).bool(),
        position_ids=padded(2, 0),
        block_position_ids=padded(3, 0),
        labels=padded(4, -100) if any(blanks) else None,
    )
