"""All tasks by name, and what is done with the one that is named."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from modelzoo.data.columns import Asker, Form, check_told, find_in_form, no_form
from modelzoo.data.tasks.causal_lm import CAUSAL_LM
from modelzoo.data.tasks.choices import MULTIPLE_CHOICE, with_choices
from modelzoo.data.tasks.classification import CLASSIFICATION
from modelzoo.data.tasks.masked_lm import MASKED_LM
from modelzoo.data.tasks.question_answering import QUESTION_ANSWERING
from modelzoo.data.tasks.seq2seq_lm import SEQ2SEQ_LM
from modelzoo.data.tasks.spec import EncodedRows, PromptRows, Recipe, Rows, TaskSpec
from modelzoo.data.tasks.token_classification import TOKEN_CLASSIFICATION
from modelzoo.errors import DataError

__all__ = ["TASKS", "encode_candidates", "encode_prompts", "encode_rows", "find_columns", "task_spec"]

TASKS: dict[str, TaskSpec] = {
    "classification": CLASSIFICATION,
    "token_classification": TOKEN_CLASSIFICATION,
    "question_answering": QUESTION_ANSWERING,
    "masked_lm": MASKED_LM,
    "multiple_choice": MULTIPLE_CHOICE,
    "causal_lm": with_choices(CAUSAL_LM, "prompt", "completion"),
    "seq2seq_lm": with_choices(SEQ2SEQ_LM, "source", "target"),
}


def task_spec(task: str) -> TaskSpec:
    """Return what is known of a task.

    Raises:
        DataError: If it is none of TASKS.
    """
    if task not in TASKS:
        raise DataError(f"expected a task with a data form ({', '.join(TASKS)}), found {task!r}")
    return TASKS[task]


def find_columns(
    rows: Rows,
    task: str,
    columns: Mapping[str, str] | None = None,
    *,
    source: str = "data",
    labelled: bool = True,
    asker: Asker = "recipe",
) -> dict[str, str]:
    """Return the column of each role of the task.

    Args:
        rows: At least one row; the first one shows the columns.
        task: One of TASKS.
        columns: Column by role, as in `data.columns`; roles that it leaves out are looked for by their usual names.
        source: What the rows are called in errors.
        labelled: False leaves the roles of targets out (prediction).
        asker: Who is told how to name them: a recipe, or a call of eval or predict.

    Raises:
        DataError: If a role or column is not known or no column fits; it shows the columns, the first row and the lines to add.
    """
    try:
        forms = task_spec(task).forms
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    told = check_told(columns or {}, forms, rows[0], source, asker)
    fitting = [form for form in forms if set(told) <= set(form.roles)]
    if not fitting:
        raise _mixed(task, told, forms)
    for form in fitting:
        try:
            return find_in_form(rows, form, told, source=source, labelled=labelled, asker=asker)
        except DataError:
            if form is fitting[-1] and not told and len(fitting) > 1:
                raise no_form(fitting, rows[0], source, asker) from None
            if form is fitting[-1]:
                raise
    raise AssertionError("the last form returns or raises")


def _mixed(task: str, told: Mapping[str, str], forms: tuple[Form, ...]) -> DataError:
    known = " or ".join("{" + ", ".join(form.roles) + "}" for form in forms)
    return DataError(f"data.columns: expected roles of one form of {task} ({known}), found {', '.join(told)} together")


def encode_rows(rows: Rows, recipe: Recipe) -> EncodedRows:
    """Encode all rows of a data set.

    Raises:
        DataError: If a column, text or label is missing or wrong, naming the row (counted from 1) and its value.
    """
    spec = task_spec(recipe.task)
    if spec.prompts is not None and not recipe.labelled:
        raise DataError(f"{recipe.source}: rows without targets are prompts to a {recipe.task}; use encode_prompts")
    with _named(rows, recipe) as columns:
        return spec.encode(rows, columns, recipe)


def encode_prompts(rows: Rows, recipe: Recipe) -> PromptRows:
    """Encode rows as prompts.

    Args:
        rows: At least one.
        recipe: With `labelled`, the right answers are read too, where the rows' form has any.

    Raises:
        DataError: As `encode_rows`, or the task's model writes no text.
    """
    make = task_spec(recipe.task).prompts
    if make is None:
        raise DataError(f"{recipe.source}: a model for {recipe.task} writes no text")
    with _named(rows, recipe) as columns:
        return make(rows, columns, recipe)


def encode_candidates(rows: Rows, recipe: Recipe) -> EncodedRows:
    """Encode rows with choices as an item a choice, the choices of a row one after another.

    Raises:
        DataError: As `encode_rows`, or rows of the task have no choices.
    """
    make = task_spec(recipe.task).candidates
    with _named(rows, recipe) as columns:
        if make is None or "choices" not in columns:
            raise DataError(f"{recipe.source}: expected rows with choices, found {', '.join(columns)}")
        return make(rows, columns, recipe)


@contextmanager
def _named(rows: Rows, recipe: Recipe) -> Iterator[dict[str, str]]:
    """Find the columns, and put the rows' name before an error that lacks it."""
    if not rows:
        raise DataError(f"{recipe.source}: expected at least one row, found none")
    columns = find_columns(rows, recipe.task, recipe.columns, source=recipe.source, labelled=recipe.labelled, asker=recipe.asker)
    try:
        yield columns
    except DataError as error:
        if str(error).startswith(f"{recipe.source}:"):
            raise
        raise DataError(f"{recipe.source}: {error}") from error
