"""Classification: one text or a pair, and one label."""

from collections.abc import Mapping

from modelzoo.data.columns import Form, problem_rows
from modelzoo.data.tasks.label_columns import label_ids, label_table
from modelzoo.data.tasks.spec import EncodedRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts

__all__ = ["CLASSIFICATION"]

_LABEL_NAMES = ("label", "labels", "answer", "target", "class", "category", "gold_label", "coarse_label")


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    first = read_texts(rows, columns["text_a"], recipe.source)
    second = read_texts(rows, columns["text_b"], recipe.source) if "text_b" in columns else None
    empty = [row for row, text in enumerate(first) if not text.strip() and (second is None or not second[row].strip())]
    if empty:
        raise problem_rows(recipe.source, [f"row {row + 1}: the text is empty" for row in empty], "fill or remove it")
    result = EncodedRows(encodings=recipe.tokenizer.encode(first, second, recipe.max_length, recipe.truncation))
    if "label" in columns:
        values = [row.get(columns["label"]) for row in rows]
        table = label_table([[value] for value in values], recipe)
        result.labels = [ids[0] for ids in label_ids([[value] for value in values], table, recipe)]
        result.label_names = table.names
    elif recipe.label_names:
        result.label_names = tuple(recipe.label_names)
    return result


CLASSIFICATION = TaskSpec(
    forms=(
        Form(
            task="classification",
            roles={"text_a": (), "text_b": (), "label": _LABEL_NAMES, "group": ("question_group",)},
            optional=frozenset({"text_b", "group"}),
            targets=frozenset({"label"}),
            filled=frozenset({"text_a", "text_b"}),
            is_pair=True,
        ),
    ),
    encode=_encode,
    targets="item",
    label_role="label",
)
