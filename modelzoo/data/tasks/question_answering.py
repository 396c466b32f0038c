"""Extractive question answering: a question, the text that holds the answer, and where in it (SQuAD's form)."""

from collections.abc import Mapping

from modelzoo.data.answer_windows import encode_questions
from modelzoo.data.columns import Form
from modelzoo.data.row_problems import RowChecks
from modelzoo.data.tasks.spec import EncodedRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts

__all__ = ["QUESTION_ANSWERING"]


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    checks = RowChecks(recipe.source)
    questions: list[str] = []
    contexts: list[str] = []
    with checks:
        questions = read_texts(rows, columns["question"], recipe.source)
    with checks:
        contexts = read_texts(rows, columns["context"], recipe.source, never_empty="the context")
    checks.finish()
    answers = [row.get(columns["answers"]) for row in rows] if "answers" in columns else None
    stride = min(128, recipe.max_length // 4) if recipe.window_stride is None else recipe.window_stride
    encodings, spans = encode_questions(
        recipe.tokenizer, questions, contexts, answers, max_length=recipe.max_length, stride=stride, source=recipe.source
    )
    return EncodedRows(encodings=encodings, spans=spans)


QUESTION_ANSWERING = TaskSpec(
    forms=(
        Form(
            task="question_answering",
            roles={
                "question": ("question", "query"),
                "context": ("context", "passage", "paragraph", "document"),
                "answers": ("answers", "answer"),
            },
            targets=frozenset({"answers"}),
        ),
    ),
    encode=_encode,
    targets="span",
)
