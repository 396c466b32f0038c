"""Causal language modelling: plain texts, prompts with completions, instructions, and chats.

Every token of a text is predicted; of the other forms only what is to be written: the completion or the assistant's answers, each
with its end token. A sequence's first token has nothing before it and is never a target.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modelzoo.data.chat import ChatEncoder, chat_template, read_messages
from modelzoo.data.chat_template import Message
from modelzoo.data.columns import Form
from modelzoo.data.encoding import Encoding
from modelzoo.data.masking import IGNORED
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.data.tasks.cutting import Cut, special_around
from modelzoo.data.tasks.spec import EncodedRows, PromptRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["CAUSAL_LM", "end_of", "read_chats"]


class _Sequence(NamedTuple):
    """A row's ids, and which of them are to be written."""

    ids: list[int]
    is_target: list[bool]


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    if "text" in columns:
        return _documents(read_texts(rows, columns["text"], recipe.source), recipe)
    if "prompt" in columns:
        return _as_items(_completions(rows, columns, recipe), recipe, form="completion")
    return _as_items(_chats(rows, columns, recipe), recipe, form="chat")


def _documents(texts: Sequence[str], recipe: Recipe) -> EncodedRows:
    """Cut texts into pieces; each begins with the last token of the one before, so that every token is predicted exactly once."""
    end = end_of(recipe.tokenizer, "causal_lm")
    result = EncodedRows(encodings=[], labels=[], form="text")
    labels: list[list[int]] = []
    encodings = recipe.tokenizer.encode(texts)
    _check_begins([encoding.input_ids for encoding in encodings], recipe)
    for row, encoding in enumerate(encodings):
        ids = encoding.input_ids
        if not texts[row].strip():
            result.empty_rows.append(row)
        ids = ids if ids[-1:] == [end] else [*ids, end]
        for start in range(0, max(len(ids) - 1, 1), recipe.max_length - 1):
            piece = ids[start : start + recipe.max_length]
            result.encodings.append(Encoding(input_ids=piece, row=row))
            labels.append([IGNORED, *piece[1:]])
    result.labels = labels
    return result


def _cut(recipe: Recipe) -> Cut:
    """Return how `_documents` cuts, for texts that are tokenized already."""
    before, _ = special_around(recipe.tokenizer)
    after = (end_of(recipe.tokenizer, "causal_lm"),)

    def num_targets(counts: Sequence[int]) -> int:
        return sum(counts) - len(counts)

    return Cut(form="text", length=recipe.max_length, overlap=1, before=before, after=after, num_targets=num_targets)


def _completions(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> list[_Sequence]:
    """Return prompts with completions; a prompt's ids are those that it has alone, as when it is to be continued."""
    tokenizer, end = recipe.tokenizer, end_of(recipe.tokenizer, "causal_lm")
    checks = RowChecks(recipe.source)
    prompts: list[str] = []
    completions: list[str] = []
    with checks:
        prompts = read_texts(rows, columns["prompt"], recipe.source)
    with checks:
        completions = read_texts(rows, columns["completion"], recipe.source, never_empty="the completion")
    checks.finish()
    wholes = _open_ids([prompt + completion for prompt, completion in zip(prompts, completions, strict=True)], tokenizer)
    _check_begins(wholes, recipe)
    alone = tokenizer.encode_parts(completions)
    sequences = []
    for prompt, ids, completion in zip(_open_ids(prompts, tokenizer), wholes, alone, strict=True):
        if ids[: len(prompt)] != prompt:  # a token would reach from the prompt into the completion
            ids = [*prompt, *completion.input_ids]
        sequences.append(_Sequence([*ids, end], [False] * len(prompt) + [True] * (len(ids) - len(prompt) + 1)))
    return sequences


def _chats(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> list[_Sequence]:
    encoder = _chat_encoder(recipe)
    chats = read_chats(rows, columns, recipe.source)
    sequences = []
    for number, messages in enumerate(chats, start=1):
        try:
            sequences.append(_Sequence(*encoder.encode(messages)))
        except DataError as error:
            raise DataError(f"{recipe.source}: row {number}: {error}") from error
    return sequences


def read_chats(rows: Rows, columns: Mapping[str, str], source: str, *, is_asked: bool = False) -> list[list[Message]]:
    """Return the messages of each row; an instruction with its input and output is a chat of one turn.

    Args:
        rows: Of chats or instructions.
        columns: Column by role.
        source: What the rows are called.
        is_asked: Whether the last answer is left out.

    Raises:
        DataError: Rows that are no chats, each by its number.
    """
    if "messages" not in columns:
        return _turns(rows, columns, source, is_asked=is_asked)
    chats, problems = [], []
    for number, row in enumerate(rows, start=1):
        try:
            chats.append(read_messages(row.get(columns["messages"]), is_asked=is_asked))
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        raise problem_rows(source, problems, "repair or remove the row")
    return chats


def _turns(rows: Rows, columns: Mapping[str, str], source: str, *, is_asked: bool) -> list[list[Message]]:
    """Return instructions, with their inputs and unless they are asked their outputs, as chats of one turn."""
    checks = RowChecks(source)
    questions: list[str] = []
    inputs = answers = [""] * len(rows)
    with checks:
        questions = read_texts(rows, columns["instruction"], source)
    if "input" in columns:
        with checks:
            inputs = read_texts(rows, columns["input"], source, may_be_missing=True)
    if not is_asked:
        with checks:
            answers = read_texts(rows, columns["output"], source, never_empty="the output")
    checks.finish()
    chats: list[list[Message]] = []
    for question, more, answer in zip(questions, inputs, answers, strict=True):
        chats.append([{"role": "user", "content": "\n".join(filter(None, (question, more)))}])
        if not is_asked:
            chats[-1].append({"role": "assistant", "content": answer})
    return chats


def _as_items(sequences: Sequence[_Sequence], recipe: Recipe, *, form: str) -> EncodedRows:
    """Cut sequences at their ends to the longest length, targets counted."""
    result = EncodedRows(encodings=[], form=form)
    labels: list[list[int]] = []
    long = [row for row, sequence in enumerate(sequences) if len(sequence.ids) > recipe.max_length]
    if long and recipe.truncation == "error":
        more = f"; {len(long)} rows are too long" if len(long) > 1 else ""
        found = f"row {long[0] + 1} has {len(sequences[long[0]].ids)} tokens, limit {recipe.max_length}{more}"
        raise DataError(f"{recipe.source}: {found}; shorten the text, raise max_length, or set truncation=longest_first")
    for row, (ids, is_target) in enumerate(sequences):
        kept = ids[: recipe.max_length]
        result.encodings.append(Encoding(input_ids=kept, row=row, truncated=len(ids) - len(kept)))
        wanted = [token_id if target else IGNORED for token_id, target in zip(ids, is_target, strict=True)]
        wanted[0] = IGNORED
        result.lost_targets += sum(label != IGNORED for label in wanted[len(kept) :])
        labels.append(wanted[: len(kept)])
    result.labels = labels
    return result


def _prompts(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> PromptRows:
    tokenizer = recipe.tokenizer
    if "text" in columns or "prompt" in columns:
        texts = read_texts(rows, columns.get("prompt") or columns["text"], recipe.source)
        given = read_texts(rows, columns["completion"], recipe.source) if "completion" in columns and recipe.labelled else []
        return PromptRows(_open_ids(texts, tokenizer), [(text,) for text in given], (end_of(tokenizer, "causal_lm"),))
    encoder = _chat_encoder(recipe)
    asked = read_chats(rows, columns, recipe.source, is_asked=True)
    answers = [(chat[-1]["content"],) for chat in read_chats(rows, columns, recipe.source)] if recipe.labelled else []
    ids = []
    for number, messages in enumerate(asked, start=1):
        try:
            ids.append(encoder.prompt(messages))
        except DataError as error:
            raise DataError(f"{recipe.source}: row {number}: {error}") from error
    return PromptRows(ids, answers, encoder.end_ids)


def _chat_encoder(recipe: Recipe) -> ChatEncoder:
    return ChatEncoder(recipe.tokenizer, chat_template(recipe.tokenizer, recipe.template))


def _open_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of texts that go on, without the end token that some tokenizers put after every text."""
    has_end = tokenizer.eos_id in special_around(tokenizer)[1]
    return [encoding.input_ids[:-1] if has_end else encoding.input_ids for encoding in tokenizer.encode(texts)]


def _check_begins(rows: Sequence[list[int]], recipe: Recipe) -> None:
    """Refuse texts that have the begin token already which the tokenizer puts before them: no model was trained on two."""
    tokenizer = recipe.tokenizer
    begin = tokenizer.bos_id
    if begin is None or not tokenizer.begins_texts:
        return
    token = tokenizer.tokens([begin])[0]
    twice = [f"row {row}: begins with {token} twice" for row, ids in enumerate(rows, start=1) if ids[:2] == [begin, begin]]
    if twice:
        raise problem_rows(recipe.source, twice, f"the tokenizer adds one; remove {token} from the beginning of the text")


def end_of(tokenizer: Tokenizer, task: str) -> int:
    """Return the id that ends texts.

    Args:
        tokenizer: Of the model.
        task: That needs it, for the error.

    Raises:
        DataError: If there is none: a model that never saw an end would never stop.
    """
    if tokenizer.eos_id is None:
        raise DataError(f"{task} needs a tokenizer with an end token, found none; set eos_token in tokenizer_config.json")
    return tokenizer.eos_id


CAUSAL_LM = TaskSpec(
    forms=(
        Form(task="causal_lm", roles={"messages": ("messages", "conversations", "conversation")}),
        Form(
            task="causal_lm",
            roles={"instruction": ("instruction",), "input": ("input",), "output": ("output", "response", "answer")},
            optional=frozenset({"input"}),
            targets=frozenset({"output"}),
            filled=frozenset({"instruction", "input", "output"}),
        ),
        Form(
            task="causal_lm",
            roles={
                "prompt": ("prompt", "question", "query", "input"),
                "completion": ("completion", "response", "answer", "output"),
            },
            targets=frozenset({"completion"}),
            filled=frozenset({"prompt", "completion"}),
        ),
        Form(
            task="causal_lm",
            roles={"text": ("text", "content", "document", "sentence", "review", "comment", "tweet")},
            filled=frozenset({"text"}),
        ),
    ),
    encode=_encode,
    cut=_cut,
    prompts=_prompts,
    targets="token",
    predicts_next=True,
    scores_vocabulary=True,
)
