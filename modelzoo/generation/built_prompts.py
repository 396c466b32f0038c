"""Prompts of the families whose inputs are built from texts: CPM-Bee's trees, and GLM-10B's texts with a mask."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from modelzoo.data import Tokenizer
from modelzoo.data.cpm_bee_batches import BeeBatch, Written, bee_prompts
from modelzoo.data.cpm_bee_trees import Tree, read_trees
from modelzoo.data.glm_blanks import glm_prompts
from modelzoo.errors import DataError
from modelzoo.generation.prompt_batch import Prompts
from modelzoo.models.cpm_bee_segments import SegmentMarks
from modelzoo.models.model import Model

__all__ = ["built_prompts", "tree_prompts"]


def built_prompts(model: Model, items: Sequence[object], tokenizer: Tokenizer) -> Prompts | None:
    """Return what a family makes of texts and trees; None where texts are read as they stand.

    Args:
        model: Which will read them.
        items: Prompts, all of one kind.
        tokenizer: Of the model.

    Raises:
        DataError: The family reads no trees, a tree has more than one answer, or a text has no mask.
    """
    if isinstance(items[0], Mapping):
        if model.family != "cpmbee":
            raise DataError(f"prompt 0: a tree of texts is a prompt of CPM-Bee alone, found a {type(model).__name__}; give a text")
        trees: list[Tree] = [item for item in items if isinstance(item, Mapping)]
        for row, tree in enumerate(read_trees(tokenizer, trees)):
            if len(tree.answers) != 1:
                raise DataError(
                    f"prompt {row}: expected one text below <ans>, found {len(tree.answers)}; use modelzoo.generation.answer"
                )
        return tree_prompts(model, trees, tokenizer)
    if model.family != "glm-10b" or not isinstance(items[0], str):
        return None
    blank = glm_prompts(tokenizer, [item for item in items if isinstance(item, str)])
    places = {"position_ids": blank.position_ids, "block_position_ids": blank.block_position_ids}
    return Prompts(blank.ids, blank.mask, marks=places, begins_text=True)


def tree_prompts(
    model: Model, trees: Sequence[Tree], tokenizer: Tokenizer, written: Written = (), examples: Sequence[Tree] = ()
) -> Prompts:
    """Return trees up to their next answer.

    Args:
        model: A CPM-Bee.
        trees: With "<ans>".
        tokenizer: Of the model.
        written: The answers that each tree has already.
        examples: Trees with their answers, which each of `trees` sees.

    Raises:
        DataError: As `read_trees`.
    """
    batch = bee_prompts(tokenizer, trees, model.config.vocab_size, written, examples=examples)
    marks: dict[str, object] = {"context": batch.context, "numbers": batch.numbers, "segments": SegmentMarks(*batch.segments)}
    writable = _writable(batch, model.config.vocab_size, tokenizer)
    extra = batch.extra if len(batch.extra[0]) else None
    marks |= {"writable": writable, "samples": batch.samples if examples else None}
    return Prompts(batch.ids, batch.mask, marks, {"extra": extra}, batch.words, begins_text=True)


def _writable(batch: BeeBatch, vocab_size: int, tokenizer: Tokenizer) -> Tensor:
    """Return (B, V + E) bool: of numbered tokens and unknown words, a row may write its own."""
    result = torch.ones(len(batch.ids), vocab_size + len(batch.extra[0]), dtype=torch.bool)
    result[:, vocab_size:] = False
    if tokenizer.unk_id is not None:
        result[:, tokenizer.unk_id] = False
    for row, words in enumerate(batch.words):
        result[row, list(words)] = True
    return result
