"""A family's converter: its config table, its tables of tensor names for each task, and the names of its tasks."""

from collections.abc import Callable
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from modelzoo.converters.config_table import ConfigTable
from modelzoo.converters.mapping import Mapping, Rule
from modelzoo.errors import ConfigError

__all__ = ["FamilyConverter", "Task", "size_problems"]

Task = Literal[
    "base",
    "encoder",
    "masked_lm",
    "causal_lm",
    "seq2seq_lm",
    "classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
]
"""What a model is for: its backbone alone, or with the head of that task."""


@dataclass(frozen=True, kw_only=True)
class FamilyConverter:
    """All that a family's files need, in both directions.

    Attributes:
        model_type: Hugging Face's name of the family.
        table: The config's fields.
        architectures: The class that transformers has for each task.
        also: Other classes whose files are of a task, such as BertForPreTraining.
        mappings: Returns the table of tensor names for a task, with the output layer tied to the embedding or not, and for some
            families by the config's arguments.
        new_parts: Beginnings of our names that a file may lack: they start anew and are reported.
        sizes: For some of our names (with placeholders), the config's fields that give their shape.
        counts: For each placeholder, the config's field that gives its count.
        module_names: (part of a file's names, what transformers' own module is called in its place), where the two differ, in
            order; an adapter goes by the modules.
        is_tied_by_tensors: Whether a file's tensors, and not its config, say if the output layer is the token embedding.
    """

    model_type: str
    table: ConfigTable
    architectures: MappingABC[Task, str]
    mappings: Callable[[Task, bool, MappingABC[str, Any]], Mapping]
    also: MappingABC[str, Task] = field(default_factory=dict)
    new_parts: tuple[str, ...] = ("head.", "pooler.")
    sizes: MappingABC[str, tuple[str, ...]] = field(default_factory=dict)
    counts: MappingABC[str, str] = field(default_factory=lambda: {"layer": "num_layers"})
    module_names: tuple[tuple[str, str], ...] = ()
    is_tied_by_tensors: bool = False

    def module_name(self, name: str, *, back: bool = False) -> str:
        """Return the name of transformers' module for that of a file.

        Args:
            name: Of a tensor or module.
            back: Whether to go the other way; a name that is a file's already stays.
        """
        for file, module in reversed(self.module_names) if back else self.module_names:
            name = name.replace(module, file) if back else name.replace(file, module)
        return name

    def weights(self, task: Task, *, tied: bool = True, values: MappingABC[str, Any] | None = None) -> Mapping:
        """Return the table of tensor names.

        Args:
            task: One of the family's tasks.
            tied: Whether the output layer of a language model is the token embedding.
            values: Our config's arguments, for families whose names depend on them.

        Raises:
            ConfigError: The family has no such task.
        """
        self.require_task(task)
        return self.mappings(task, tied, values or {})

    def require_task(self, task: str) -> None:
        """Check that the family has a task.

        Raises:
            ConfigError: It has not.
        """
        if task not in self.architectures:
            kind = "is not a task" if task not in get_args(Task) else f"is not a task of {self.model_type}"
            raise ConfigError(f"task={task!r} {kind}; use one of {', '.join(self.architectures)}")

    def head_task(self, source: MappingABC[str, Any]) -> Task | None:
        """Return the task that a config.json's weights were saved for, or None when it does not say or we do not know it."""
        names = {name: task for task, name in self.architectures.items()} | dict(self.also)
        return next((names[name] for name in self.saved_as(source) if name in names), None)

    def saved_as(self, source: MappingABC[str, Any]) -> tuple[str, ...]:
        """Return the class names in a config.json.

        Raises:
            ConfigError: `architectures` is not a list of strings or null.
        """
        names = source.get("architectures")
        if names is None:
            return ()
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"config.json: architectures: expected a list of class names or null, found {names!r:.80}")
        return tuple(names)

    def default_task(self, source: MappingABC[str, Any]) -> Task:
        """Return the task to load a config.json's weights for when nobody says: that of `architectures`, "base" without one.

        Raises:
            ConfigError: `architectures` names a class that is none of the family's tasks.
        """
        saved_as = self.saved_as(source)
        if not saved_as:
            return "base"
        task = self.head_task(source)
        if task is None:
            known = ", ".join([*self.architectures.values(), *self.also])
            raise ConfigError(
                f"config.json: architectures: expected one of {known}, found {', '.join(saved_as)}. "
                f"Say what the model is for: task= one of {', '.join(self.architectures)}"
            )
        return task

    def read_config(self, source: MappingABC[str, Any], task: Task = "base") -> dict[str, Any]:
        """Read our config's arguments (all but `source`) from a config.json.

        A question answering head has two outputs whatever the labels of another task in the same config.

        Raises:
            ConfigError: The config is of another family, the family has no such task, or a field has a value that is not built.
        """
        self.require_task(task)
        found = source.get("model_type", self.model_type)
        if found != self.model_type:
            raise ConfigError(
                f"config.json: model_type: expected {self.model_type!r}, found {found!r:.80}. "
                "Use modelzoo.from_pretrained, which takes the family from the config"
            )
        values = self.table.to_ours(source, task)
        if task == "question_answering":
            values.update(num_labels=2, label_names=None)
        return values

    def write_config(
        self, values: MappingABC[str, Any], source: MappingABC[str, Any] | None, task: Task, dtype: torch.dtype
    ) -> dict[str, Any]:
        """Write a config.json.

        Args:
            values: Our config's arguments by name.
            source: The config.json that the model was read from, or None; fields that mean the same are left as they are there.
            task: What the model is for; it gives `architectures`.
            dtype: What the file's tensors are.
        """
        result = self.table.to_theirs(self._label_values(values, source, task), source)
        result.setdefault("model_type", self.model_type)
        saved_as = self.saved_as(source or {})
        if self.architectures[task] not in saved_as and (source is None or saved_as or task != "base"):
            result["architectures"] = [self.architectures[task]]
        name = str(dtype).removeprefix("torch.")
        keys = [key for key in ("dtype", "torch_dtype") if key in result]
        if keys or source is None or name != "float32":
            result.update(dict.fromkeys(keys or ["dtype"], name))
        return result

    def _label_values(self, values: MappingABC[str, Any], source: MappingABC[str, Any] | None, task: Task) -> MappingABC[str, Any]:
        """Leave the labels in a config.json alone where the task has none of its own."""
        if source is None or task in ("classification", "token_classification"):
            return values
        kept = self.table.to_ours(source, task)
        if task == "question_answering" and kept["num_labels"] != 2:
            return values
        return {**values, "num_labels": kept["num_labels"], "label_names": kept["label_names"]}


_OUTPUTS = ("head.weight", "head.bias", "head.decoder.weight", "head.output.weight", "head.output.bias")
_LABELLED = ("classification", "token_classification", "question_answering")


def size_problems(
    family: FamilyConverter, values: MappingABC[str, Any], shapes: MappingABC[str, tuple[int, ...]], task: Task
) -> list[str]:
    """Return a line for each of a model's tensors whose shape is not what its config says.

    Args:
        family: The converter, whose `sizes` say which fields give which shape.
        values: The config's arguments.
        shapes: The shape of each of the model's tensors by our name.
        task: What the model is for; its head has as many outputs as there are labels, or words.
    """
    lines = {}
    for pattern, fields in family.sizes.items():
        if task == "multiple_choice" and pattern.startswith("head.output."):
            continue
        rule = Rule(pattern, pattern)
        expected = tuple(values[name] for name in fields)
        for name, shape in shapes.items():
            if rule.match(name, side="ours") is not None and shape != expected:
                stated = ", ".join(f"{field}={values[field]}" for field in fields)
                lines[name] = f"{name}: expected shape {list(expected)} ({stated}), found {list(shape)}"
    field = "num_labels" if task in _LABELLED else "vocab_size"
    count = 1 if task == "multiple_choice" else values.get(field, 0)
    stated = "one score a choice" if task == "multiple_choice" else f"{field}={count}"
    for name in (name for name in _OUTPUTS if name in shapes and name not in lines):
        expected = (count, *shapes[name][1:])
        if shapes[name] != expected:
            lines[name] = f"{name}: expected shape {list(expected)} ({stated}), found {list(shapes[name])}"
    return list(lines.values())
