"""Labels with names from the values of a column."""

from collections.abc import Sequence
from typing import Any

from modelzoo.data.labels import LabelTable, collect_names, label_name
from modelzoo.data.row_problems import problem_rows
from modelzoo.data.tasks.spec import Recipe

__all__ = ["label_ids", "label_table"]


def label_table(values: Sequence[Sequence[Any]], recipe: Recipe) -> LabelTable:
    """Return the given label names, or those that the rows have.

    Args:
        values: Labels of each row.
        recipe: With the label names, if they are given.

    Raises:
        DataError: If a label is missing or none; it lists the rows, counted from 1.
    """
    if recipe.label_names is not None:
        return LabelTable(recipe.label_names)
    problems: list[str] = []
    for number, row in enumerate(values, start=1):
        for value in row:
            try:
                label_name(value)
            except ValueError as error:
                problems.append(f"row {number}: {error}")
                break
    if problems:
        raise problem_rows(recipe.source, problems, "give each row a label")
    return LabelTable(collect_names((value for row in values for value in row), len(values)))


def label_ids(values: Sequence[Sequence[Any]], table: LabelTable, recipe: Recipe) -> list[list[int]]:
    """Return the ids of each row's labels.

    Args:
        values: Labels of each row.
        table: Of the label names.
        recipe: Says what the rows are called in errors.

    Raises:
        DataError: If a label has no name in the table; it lists the rows, counted from 1.
    """
    ids: list[list[int]] = []
    problems: list[str] = []
    for number, row in enumerate(values, start=1):
        try:
            ids.append([table.id(value) for value in row])
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        known = "or leave the row out: the model knows no other labels"
        known = "or set data.label_names to all labels" if recipe.asker == "recipe" else known
        raise problem_rows(recipe.source, problems, f"correct the label, {known}")
    return ids
