"""Trees of CPM-Bee as a padded batch: what its model takes for writing answers, and for learning them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from modelzoo.data.cpm_bee_trees import ANSWER, BeeTree, Tree, read_trees
from modelzoo.data.tokenizer import Tokenizer

__all__ = ["BeeBatch", "bee_prompts", "bee_training_batch"]

Written = Sequence[Sequence[Sequence[int]]]
"""Ids of the answers that a tree already has, without end tokens, tree by tree."""


@dataclass(frozen=True, slots=True)
class BeeBatch:
    """What `CpmBee.forward` takes; each (B, T) but where it says so."""

    ids: Tensor
    """int64."""
    mask: Tensor
    """bool."""
    context: Tensor
    """bool: everything but answers."""
    numbers: Tensor
    """int64."""
    segments: tuple[Tensor, Tensor, Tensor, Tensor]
    """int64: segment, segments of the tree, place of the tree among the relations, and (B, R) relations."""
    samples: Tensor
    """int64: 0 for the tree itself, from 1 for its examples."""
    extra: tuple[Tensor, Tensor]
    """Ids and numbers, each (E,) int64, of the tokens that extend the vocabulary."""
    words: tuple[Mapping[int, str], ...]
    """Text by id of the numbered tokens that each row may write: from the vocabulary's size on, or the first of its kind."""
    labels: Tensor | None = None
    """int64: the answers' tokens; -100 elsewhere. None for prompts."""

    def inputs(self) -> dict[str, Any]:
        """Return the arguments of `CpmBee.forward`."""
        names = {"input_ids": self.ids, "attention_mask": self.mask, "context": self.context, "numbers": self.numbers}
        more = {"segments": self.segments, "samples": self.samples, "extra": self.extra if len(self.extra[0]) else None}
        return {**names, **more, **({} if self.labels is None else {"labels": self.labels})}


class _Token(NamedTuple):
    id: int
    number: int
    segment: int
    num_segments: int
    offset: int = 0
    sample: int = 0
    is_context: bool = False
    label: int = -100


def bee_prompts(
    tokenizer: Tokenizer,
    trees: Sequence[Tree],
    vocab_size: int,
    written: Written = (),
    *,
    examples: Sequence[Tree] = (),
    max_depth: int = 8,
) -> BeeBatch:
    """Return trees up to where their next answer begins, padded on the left.

    Args:
        tokenizer: CPM-Bee's.
        trees: With "<ans>", whose texts are not read.
        vocab_size: Rows of the model's token table, from which on ids extend it.
        written: The answers that each tree has already; empty for the first. A tree that has all of them ends with its last.
        examples: As `read_trees`.
        max_depth: As `read_trees`.

    Raises:
        DataError: As `read_trees`.
    """
    read = read_trees(tokenizer, trees, examples=examples, max_depth=max_depth)
    extra = _extra(read)
    begin = tokenizer.get_vocab()["<s>"]
    rows = []
    for index, tree in enumerate(read):
        row = _context(tree)
        done = written[index] if written else ()
        for answer, ids in zip(tree.answers, [*done, None], strict=False):
            known = [] if ids is None else [_base(each, extra, vocab_size) for each in ids]
            row += [_Token(token, number, answer.segment, tree.count) for token, number in [(begin, 0), *known]]
        rows.append(row)
    return _padded(rows, read, extra, vocab_size, tokenizer.pad_id or 0, is_left=True)


def bee_training_batch(tokenizer: Tokenizer, trees: Sequence[Tree], vocab_size: int, *, max_depth: int = 8) -> BeeBatch:
    """Return trees with their answers as labels, padded on the right.

    Answers stand behind everything else, which changes nothing: who sees whom, and how far apart two segments are, does not depend
    on their order. The end of an answer is learnt at its last token.

    Args:
        tokenizer: CPM-Bee's.
        trees: With "<ans>", the texts below which are learnt.
        vocab_size: As in `bee_prompts`.
        max_depth: As `read_trees`.

    Raises:
        DataError: As `read_trees`.
    """
    read = read_trees(tokenizer, trees, has_answers=True, max_depth=max_depth)
    extra = _extra(read, has_answers=True)
    vocabulary = tokenizer.get_vocab()
    begin, end = vocabulary["<s>"], vocabulary["</s>"]
    rows = []
    for tree in read:
        row = _context(tree)
        for index, answer in enumerate(tree.answers):
            # Where the next answer begins, the one before has ended.
            row.append(_Token(begin, 0, answer.segment, tree.count, label=end if index else -100))
            for token, number in zip(answer.ids, answer.numbers, strict=True):
                place = extra.get((token, number))
                label = token if place is None else vocab_size + place
                row.append(_Token(token, number, answer.segment, tree.count, label=label))
        # Nobody sees the last token; its label is what the one before predicts.
        row.append(_Token(end, 0, tree.answers[-1].segment, tree.count, label=end))
        rows.append(row)
    return _padded(rows, read, extra, vocab_size, tokenizer.pad_id or 0, is_left=False)


def _context(tree: BeeTree) -> list[_Token]:
    lists = (tree.ids, tree.numbers, tree.segments, tree.counts, tree.offsets, tree.samples)
    return [
        _Token(token, number, segment, count, offset, sample, True)
        for token, number, segment, count, offset, sample in zip(*lists, strict=True)
    ]


def _extra(trees: Sequence[BeeTree], *, has_answers: bool = False) -> dict[tuple[int, int], int]:
    """Return a place for each numbered token that has no token of its own; names of answers to be written are not written."""
    pairs = (pair for tree in trees for pair, text in tree.words.items() if has_answers or not _is_answer(text))
    return {pair: place for place, pair in enumerate(dict.fromkeys(pair for pair in pairs if pair[1]))}


def _base(token: int, extra: Mapping[tuple[int, int], int], vocab_size: int) -> tuple[int, int]:
    """Return token and number of an id that may extend the vocabulary."""
    return (token, 0) if token < vocab_size else list(extra)[token - vocab_size]


def _padded(
    rows: Sequence[Sequence[_Token]],
    trees: Sequence[BeeTree],
    extra: Mapping[tuple[int, int], int],
    vocab_size: int,
    pad: int,
    *,
    is_left: bool,
) -> BeeBatch:
    width = max(len(row) for row in rows)

    def filled(values: Sequence[Sequence[int]], empty: int = 0) -> Tensor:
        missing = [[empty] * (width - len(each)) for each in values]
        both = zip(values, missing, strict=True)
        return torch.tensor([[*space, *each] if is_left else [*each, *space] for each, space in both])

    def of(read: Callable[[_Token], int], empty: int = 0) -> Tensor:
        return filled([[read(token) for token in row] for row in rows], empty)

    most = max(len(tree.relations) for tree in trees)
    relations = torch.tensor([tree.relations + [0] * (most - len(tree.relations)) for tree in trees])
    pairs = torch.tensor(list(extra)).reshape(-1, 2)
    is_labelled = any(token.label >= 0 for row in rows for token in row)
    return BeeBatch(
        ids=of(lambda token: token.id, pad),
        mask=of(lambda token: 1).bool(),
        context=of(lambda token: token.is_context).bool(),
        numbers=of(lambda token: token.number),
        segments=(of(lambda token: token.segment), of(lambda token: token.num_segments), of(lambda token: token.offset), relations),
        samples=of(lambda token: token.sample),
        extra=(pairs[:, 0], pairs[:, 1]),
        words=tuple(_words(tree, extra, vocab_size) for tree in trees),
        labels=of(lambda token: token.label, -100) if is_labelled else None,
    )


def _words(tree: BeeTree, extra: Mapping[tuple[int, int], int], vocab_size: int) -> dict[int, str]:
    known = {pair: text for pair, text in tree.words.items() if pair[1] == 0 or pair in extra}
    return {vocab_size + extra[pair] if pair[1] else pair[0]: text for pair, text in known.items() if not _is_answer(text)}


def _is_answer(text: str) -> bool:
    return text.startswith(f"{ANSWER[:-1]}_")
