"""CPM-Bee's prompts: trees of texts, as {"input": "...", "<ans>": ""}, whose answers the model writes.

Every key and every text is a segment, read from <s> to </s>. A pair of segments is told by how many steps up and down the tree lead
from one to the other. Numbered tokens (<ans_2>, <mask_1>) and unknown words are numbered within a tree in the order in which they
appear; those that have no token of their own extend the vocabulary, so that the model can write them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from modelzoo.data.cpm_bee_pieces import BeePieces, BeeToken, base_token
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["ANSWER", "Answer", "BeeTree", "Tree", "read_trees"]

ANSWER = "<ans>"
"""Key, at the top of a tree, of what the model writes."""
_ROOT = "<root>"
_BEGIN, _END = "<s>", "</s>"

Tree = Mapping[str, "str | Tree"]
"""Texts by key, and further trees."""


class Answer(NamedTuple):
    """A text that the model writes."""

    path: tuple[str, ...]
    """Keys that lead to it."""
    segment: int
    """Its segment."""
    ids: list[int]
    """Its own tokens, without <s> and </s>."""
    numbers: list[int]
    """Number of each token."""


@dataclass(slots=True)
class BeeTree:
    """One tree as tokens; its answers apart."""

    ids: list[int] = field(default_factory=list)
    """Tokens of everything but the answers, then those of its examples."""
    numbers: list[int] = field(default_factory=list)
    """Number of each: 0 for a token of the vocabulary and for the first numbered one of a kind."""
    segments: list[int] = field(default_factory=list)
    """Segment of each in its own tree."""
    counts: list[int] = field(default_factory=list)
    """Segments of each one's tree."""
    offsets: list[int] = field(default_factory=list)
    """Where each one's tree begins in `relations`."""
    samples: list[int] = field(default_factory=list)
    """0 for the tree itself, from 1 for its examples."""
    count: int = 0
    """Segments of the tree itself."""
    relations: list[int] = field(default_factory=list)
    """Buckets of the tree, then of each example, query's segment by key's; 0 in one segment, 1 is for other samples."""
    answers: list[Answer] = field(default_factory=list)
    """In the order in which they are written."""
    words: dict[tuple[int, int], str] = field(default_factory=dict)
    """Text of each numbered token, by token and number."""


class _Segment(NamedTuple):
    text: str
    lineage: tuple[int, ...]
    """Segments from the root to this one."""
    path: tuple[str, ...]
    is_answer: bool


def read_trees(
    tokenizer: Tokenizer,
    trees: Sequence[Tree],
    *,
    has_answers: bool = False,
    examples: Sequence[Tree] = (),
    max_depth: int = 8,
) -> list[BeeTree]:
    """Turn trees into tokens, as OpenBMB's code does for generation.

    Args:
        tokenizer: CPM-Bee's.
        trees: Texts by key, and further trees, in which "<ans>" is a text or a tree of texts.
        has_answers: Whether the texts below "<ans>" are read, as for training; else they are for the model to write.
        examples: Trees with their answers, which each of `trees` sees and which see themselves alone.
        max_depth: Steps up or down that are told apart, as in the checkpoint's training.

    Raises:
        DataError: A tree has no answer, holds something else than texts and trees, or a special token that does not exist. The row
            is counted from 1.
    """
    pieces = BeePieces(tokenizer.get_vocab())
    result = []
    for row, tree in enumerate(trees):
        numbers: dict[str, dict[str, int]] = {}
        try:
            read = _read_tree(pieces, tree, numbers, has_answers=has_answers, max_depth=max_depth)
        except DataError as error:
            raise DataError(f"row {row + 1}: {error}") from error
        for number, example in enumerate(examples, start=1):
            try:
                _add_example(read, _read_tree(pieces, example, numbers, has_answers=True, max_depth=max_depth), pieces, number)
            except DataError as error:
                raise DataError(f"example {number}: {error}") from error
        result.append(read)
    return result


def _read_tree(pieces: BeePieces, tree: Tree, numbers: dict[str, dict[str, int]], *, has_answers: bool, max_depth: int) -> BeeTree:
    """Return one tree; `numbers`, of each kind of numbered tokens, grow."""
    if not isinstance(tree, Mapping) or ANSWER not in tree:
        found = ", ".join(map(str, list(tree)[:5])) if isinstance(tree, Mapping) else repr(tree)[:60]
        raise DataError(f'expected a tree with the key "{ANSWER}", as {{"input": "...", "{ANSWER}": ""}}, found {found}')
    segments = [_Segment(_ROOT, (0,), (), False)]
    segments += _segments(tree, segments[0], 1)
    result = BeeTree(count=len(segments), relations=_relations([each.lineage for each in segments], max_depth))
    for number, segment in enumerate(segments):
        # An answer that is to be written has a name, which takes part in the numbering.
        text = segment.text if has_answers or not segment.is_answer else f"<ans_{len(result.answers) + 1}>"
        ids, own = _numbered(pieces, pieces.tokens(text), numbers, result.words)
        if segment.is_answer:
            result.answers.append(Answer(segment.path, number, ids, own))
        else:
            _add(result, [pieces.vocabulary[_BEGIN], *ids, pieces.vocabulary[_END]], [0, *own, 0], number, result.count)
    if not result.answers:
        raise DataError(f'expected a text below "{ANSWER}", found an empty tree')
    return result


def _add(
    tree: BeeTree, ids: Sequence[int], numbers: Sequence[int], segment: int, count: int, *, offset: int = 0, sample: int = 0
) -> None:
    """Append a segment's tokens."""
    tree.ids += ids
    tree.numbers += numbers
    lists = ((tree.segments, segment), (tree.counts, count), (tree.offsets, offset), (tree.samples, sample))
    for each, value in lists:
        each += [value] * len(ids)


def _add_example(tree: BeeTree, example: BeeTree, pieces: BeePieces, sample: int) -> None:
    """Append an example, all of which is context; its answers have no end token, as where they were learnt."""
    offset = len(tree.relations)
    for token, number, segment in zip(example.ids, example.numbers, example.segments, strict=True):
        _add(tree, [token], [number], segment, example.count, offset=offset, sample=sample)
    for answer in example.answers:
        ids = [pieces.vocabulary[_BEGIN], *answer.ids]
        _add(tree, ids, [0, *answer.numbers], answer.segment, example.count, offset=offset, sample=sample)
    tree.relations += example.relations
    tree.words |= example.words


def _segments(tree: Tree, parent: _Segment, first: int) -> Iterator[_Segment]:
    """Yield the segments below one, numbered from `first`: a key, then what it holds."""
    for key, value in tree.items():
        path, lineage = (*parent.path, key), (*parent.lineage, first)
        if not isinstance(key, str) or not isinstance(value, str | Mapping):
            raise DataError(f"{'.'.join(map(str, path))}: expected a text or a tree of texts, found {value!r:.60}")
        named = _Segment(key, lineage, path, False)
        yield named
        first += 1
        inner: Iterator[_Segment] = (
            iter([_Segment(value, (*lineage, first), path, path[0] == ANSWER)])
            if isinstance(value, str)
            else _segments(value, named, first)
        )
        for segment in inner:
            yield segment
            first += 1


def _relations(lineages: Sequence[tuple[int, ...]], max_depth: int) -> list[int]:
    """Return the bucket of each pair of segments by the steps up from the first and down to the second."""
    result = []
    for query in lineages:
        for key in lineages:
            shared = sum(ours == theirs for ours, theirs in zip(query, key, strict=False))
            up, down = (min(len(each) - shared, max_depth - 1) for each in (query, key))
            result.append(up * max_depth + down + 1 if up or down else 0)
    return result


def _numbered(
    pieces: BeePieces, tokens: Sequence[BeeToken], numbers: dict[str, dict[str, int]], words: dict[tuple[int, int], str]
) -> tuple[list[int], list[int]]:
    """Return ids and numbers of a text's tokens; the tree's numbers and words grow by those that are met for the first time."""
    ids, own = [], []
    for token in tokens:
        if token.text in pieces.vocabulary and (token.is_special or token.text not in pieces.special):
            ids.append(pieces.vocabulary[token.text])
            own.append(0)
            continue
        name = base_token(token.text) if token.is_special else "<unk>"
        if name not in pieces.vocabulary:
            raise DataError(f"{token.text!r} is no special token of CPM-Bee; write << for the sign itself")
        of_name = numbers.setdefault(name, {})
        number = of_name.setdefault(token.text, len(of_name))
        ids.append(pieces.vocabulary[name])
        own.append(number)
        words[ids[-1], number] = token.text
    return ids, own
