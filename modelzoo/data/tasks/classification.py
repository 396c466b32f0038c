"""Classification: one text or a pair, and one label."""

from collections.abc import Mapping, Sequence

from modelzoo.data.columns import Form, required_text
from modelzoo.data.row_problems import RowChecks, problem_rows
from modelzoo.data.tasks.label_columns import label_ids, label_table
from modelzoo.data.tasks.spec import EncodedRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.texts import read_texts

__all__ = ["CLASSIFICATION"]

_LABEL_NAMES = ("label", "labels", "answer", "target", "class", "category", "gold_label", "coarse_label")


def _encode(rows: Rows, columns: Mapping[str, str], recipe: Recipe) -> EncodedRows:
    checks = RowChecks(recipe.source)
    texts: dict[str, list[str]] = {}
    roles = [role for role in ("text_a", "text_b") if role in columns]
    for role in roles:
        with checks:
            texts[role] = read_texts(rows, columns[role], recipe.source)
    with checks:
        _require_text(rows, [columns[role] for role in roles], recipe.source)
    result = EncodedRows(encodings=[], label_names=tuple(recipe.label_names or ()))
    if "label" in columns:
        with checks:
            values = [[row.get(columns["label"])] for row in rows]
            table = label_table(values, recipe)
            result.labels = [ids[0] for ids in label_ids(values, table, recipe)]
            result.label_names = table.names
    checks.finish()
    result.encodings = recipe.tokenizer.encode(texts["text_a"], texts.get("text_b"), recipe.max_length, recipe.truncation)
    return result


def _require_text(rows: Rows, columns: Sequence[str], source: str) -> None:
    """Refuse rows all of whose texts are empty; a text that is missing or none is for `read_texts` to say."""
    empty = []
    for number, row in enumerate(rows, start=1):
        try:
            texts = [required_text(row, column) for column in columns]
        except TypeError:
            continue
        if all(text is not None and not text.strip() for text in texts):
            empty.append(f"row {number}: the text is empty")
    if empty:
        raise problem_rows(source, empty, "fill or remove the row")


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
