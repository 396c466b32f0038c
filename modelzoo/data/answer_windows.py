"""Questions with contexts as overlapping windows, and answers as token positions (SQuAD's form)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from modelzoo.data.columns import show
from modelzoo.data.encoding import Encoding
from modelzoo.data.row_problems import problem_rows
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["encode_questions"]


def encode_questions(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    answers: Sequence[Any] | None,
    *,
    max_length: int,
    stride: int,
    source: str,
) -> tuple[list[Encoding], list[tuple[int, int]] | None]:
    """Encode each question with every window of its context.

    Args:
        tokenizer: A tokenizer with a classification token, which stands for "no answer here".
        questions: Repeated whole in each window; leading white space is removed (some of SQuAD's have a lot of it).
        contexts: The texts that are cut into windows.
        answers: {"text": [...], "answer_start": [...]} or [{"text", "answer_start"}, ...] a row; empty for unanswerable
            questions; the first answer is the target. None: no targets.
        max_length: Tokens of a window.
        stride: Tokens that neighbouring windows share.
        source: What the rows are called in errors.

    Returns:
        The windows, and for each the first and last token of the answer, or the position of the classification token twice where
        the window does not hold it.

    Raises:
        DataError: If an answer is not at the place in the context that the row says, or a question leaves no room.
    """
    if tokenizer.cls_id is None:
        raise DataError("question answering needs a tokenizer with a classification token ([CLS], <s>), found none")
    targets = None if answers is None else _answer_characters(contexts, answers, source)
    encodings = tokenizer.windows([question.lstrip() for question in questions], contexts, max_length=max_length, stride=stride)
    if targets is None:
        return encodings, None
    return encodings, [_answer_tokens(encoding, targets[encoding.row], tokenizer.cls_id) for encoding in encodings]


def _answer_characters(contexts: Sequence[str], answers: Sequence[Any], source: str) -> list[tuple[int, int] | None]:
    """Return start and end character of each row's first answer, None for unanswerable ones."""
    result: list[tuple[int, int] | None] = []
    problems: list[str] = []
    for number, (context, value) in enumerate(zip(contexts, answers, strict=True), start=1):
        try:
            first = next(_texts_and_starts(value), None)
            if first is None:
                result.append(None)
                continue
            text, start = first
            found = context[max(start, 0) : max(start, 0) + len(text)]
            if start < 0 or not text or found != text:
                raise ValueError(f"expected the answer {show(text)} at character {start} of the context, found {show(found)}")
            result.append((start, start + len(text)))
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        raise problem_rows(source, problems, "correct answer_start")
    return result


def _texts_and_starts(value: Any) -> Iterator[tuple[str, int]]:
    """Yield the answers of a row in either form."""
    if value is None:
        return
    if isinstance(value, dict) and {"text", "answer_start"} <= set(value):
        texts, starts = value["text"], value["answer_start"]
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        if not isinstance(texts, list | tuple) or not isinstance(starts, list | tuple) or len(texts) != len(starts):
            raise ValueError(f"expected as many texts as answer_start numbers, found {show(texts)} and {show(starts)}")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list) and all(isinstance(item, dict) and {"text", "answer_start"} <= set(item) for item in value):
        pairs = [(item["text"], item["answer_start"]) for item in value]
    else:
        raise ValueError(f'expected answers like {{"text": ["..."], "answer_start": [0]}}, found {show(value)}')
    for text, start in pairs:
        if not isinstance(text, str) or not isinstance(start, int):
            raise ValueError(f"expected a text and a whole number as answer, found {show(text)} and {show(start)}")
        yield text, start


def _answer_tokens(window: Encoding, target: tuple[int, int] | None, cls_id: int) -> tuple[int, int]:
    """Return first and last token of the answer in a window."""
    nowhere = window.input_ids.index(cls_id)
    if target is None or window.offsets is None or window.sequence_ids is None:
        return nowhere, nowhere
    context = [position for position, sequence in enumerate(window.sequence_ids) if sequence == 1]
    if not context:
        return nowhere, nowhere
    starts = [window.offsets[position][0] for position in context]
    ends = [window.offsets[position][1] for position in context]
    if starts[0] > target[0] or ends[-1] < target[1]:
        return nowhere, nowhere
    # The first token that ends after the answer's start and the last one that starts before its end: where several tokens share
    # a character (bytes), all of them belong to it. An answer of white space alone lies between two tokens: take both.
    first, last = sorted((bisect_right(ends, target[0]), bisect_left(starts, target[1]) - 1))
    return context[first], context[last]
