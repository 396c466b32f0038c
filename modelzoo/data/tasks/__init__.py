"""Tasks: one file each says which columns its rows have and how they become items; `TASKS` lists them."""

from modelzoo.data.tasks.registry import TASKS, encode_candidates, encode_prompts, encode_rows, find_columns, task_spec
from modelzoo.data.tasks.spec import Draws, EncodedRows, Item, PromptRows, Recipe, Rows, TaskSpec

__all__ = [
    "TASKS",
    "Draws",
    "EncodedRows",
    "Item",
    "PromptRows",
    "Recipe",
    "Rows",
    "TaskSpec",
    "encode_candidates",
    "encode_prompts",
    "encode_rows",
    "find_columns",
    "task_spec",
]
