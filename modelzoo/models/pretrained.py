"""From a name to a model in two steps: its config is read and checked first, and its weights when the place for them is ready."""

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

import torch
from torch import nn

from modelzoo import hub
from modelzoo.adapters import AdapterFile, attach_file, fill_from_file, is_adapter_folder
from modelzoo.converters import Task, converter_for
from modelzoo.errors import ConfigError, InputError
from modelzoo.hub.files import VOCABULARY_FILES
from modelzoo.layers import skip_initialization

__all__ = ["Loadable", "Pretrained", "find_pretrained", "naming"]

_LOG = logging.getLogger(__name__)


class Loadable(Protocol):
    """What a class must have to be loaded: that of every model of the zoo."""

    family: ClassVar[str]
    config_class: ClassVar[type[Any]]
    tasks: ClassVar[tuple[Task, ...]]
    source_folder: Path | None
    load_report: hub.LoadReport | None

    def __init__(self, config: Any, task: Task) -> None: ...

    def facts(self) -> hub.ModelFacts:
        """Return what a checkpoint needs to know of the model."""

    def init_weights(self, only: Collection[str] | None = None) -> None:
        """Give new parameters their first values."""

    def eval(self) -> Self:
        """Switch to evaluation."""


M = TypeVar("M", bound=Loadable)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name the config.json in what is wrong with its values, a layer's own complaint about them included.

    Raises:
        ConfigError: As the block, or where it raised a ValueError that is not modelzoo's.
    """
    try:
        yield
    except ConfigError as error:
        if str(file) in str(error):
            raise
        raise ConfigError(f"{file}: {error}") from error
    except InputError:
        raise
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained(Generic[M]):
    """A checkpoint whose config was read and fits its files; its weights are still to be read."""

    model_class: type[M]
    config: Any
    """Of the family's `config_class`."""
    task: Task
    folder: Path
    """Where its files are."""
    dtype: torch.dtype | str
    """Of the parameters: "auto" or a torch dtype."""
    allow_pickle: bool
    has_new_head: bool
    """Whether the labels are others than the file's, so that its head is left out."""
    adapter: AdapterFile | None = None
    """What is attached to the loaded model; None for nothing."""

    def skeleton(self) -> M:
        """Return the model on meta: everything about it but values."""
        with torch.device("meta"), skip_initialization(), naming(self.folder / "config.json"):
            model = self.model_class(self.config, self.task)
        model.source_folder = self.folder
        return model.eval()

    def load(self, lay_out: Callable[[nn.Module], object] | None = None) -> M:
        """Read the weights and return the model, in evaluation mode.

        Args:
            lay_out: As of `Model.from_pretrained`.

        Raises:
            CheckpointError: Files are malformed, or do not fit the config; the message lists every key.
        """
        if lay_out is not None:
            model = self.skeleton()
            trained = self._attach(model)
            lay_out(cast(nn.Module, model))
        else:
            with skip_initialization(), naming(self.folder / "config.json"):
                model = self.model_class(self.config, self.task)
            model.source_folder = self.folder
            trained = self._attach(model)
        dtype: Any = self.dtype
        report = hub.load_weights(
            cast(nn.Module, model),
            self.folder,
            model.facts(),
            dtype=dtype,
            allow_pickle=self.allow_pickle,
            new_head=self.has_new_head if trained is None else trained,
        )
        model.init_weights(only=report.new)
        if self.adapter is not None:
            fill_from_file(cast(nn.Module, model), self.adapter)
            if any((self.adapter.folder / name).is_file() for name in VOCABULARY_FILES):
                model.source_folder = self.adapter.folder  # with the chat template and the ends that it was trained with
            report = dataclasses.replace(report, new=tuple(name for name in report.new if name not in (trained or ())))
        model.load_report = report
        _LOG.info("%s", report)
        return model.eval()

    def _attach(self, model: M) -> frozenset[str] | None:
        """Attach the adapter and return the names of the model's tensors that its file holds; None without one."""
        return None if self.adapter is None else attach_file(cast(nn.Module, model), self.adapter)


def find_pretrained(
    cls: type[M],
    name_or_path: str | os.PathLike[str],
    *,
    task: Task | None = None,
    num_labels: int | None = None,
    label_names: Collection[str] | None = None,
    dtype: torch.dtype | str = "auto",
    allow_pickle: bool = False,
    dropout: float | None = None,
    **places: Any,
) -> Pretrained[M]:
    """Find a checkpoint, read its config, and compare the sizes of its files with it.

    Args:
        cls: The family.
        name_or_path: As of `Model.from_pretrained`, and so are all others.
        task: Which head.
        num_labels: Classes of a classification head.
        label_names: Name of each class.
        dtype: Of the parameters.
        allow_pickle: Whether an old pytorch_model.bin may be read.
        dropout: Replaces every dropout probability of the config.
        **places: revision, token, cache_dir and local_files_only.

    Raises:
        CheckpointError: Files are missing, or too small or large for the config.
        ConfigError: The config asks for something that the family does not build.
    """
    folder = hub.resolve(name_or_path, allow_pickle=allow_pickle, **places)
    if is_adapter_folder(folder):
        raise ConfigError(f"{folder}: holds an adapter and not a {cls.__name__}; load both with modelzoo.from_pretrained")
    source = hub.read_config(folder)
    converter = converter_for(cls.family)
    if source.get("model_type", cls.family) != cls.family:
        raise ConfigError(
            f"{folder / 'config.json'}: model_type: expected {cls.family!r} for {cls.__name__}, found "
            f"{source['model_type']!r}; use modelzoo.from_pretrained, which picks the family by itself"
        )
    task = converter.default_task(source) if task is None else task
    if task not in cls.tasks:
        raise ConfigError(f"task={task!r} is not one of {cls.__name__}'s tasks; use {', '.join(cls.tasks)}")
    with naming(folder / "config.json"):
        values = converter.read_config(source, task)
    _require_labels(task, num_labels=num_labels, label_names=label_names)
    has_other_labels = _choose_labels(values, num_labels, label_names)
    if converter.is_tied_by_tensors:
        facts = hub.ModelFacts(cls.family, task, values, source)
        values["tie_word_embeddings"] = hub.are_tied(folder, facts, allow_pickle=allow_pickle)
    if dropout is not None:
        values |= {name: dropout for name in values if name.endswith("dropout")}
    hub.check_sizes(folder, hub.ModelFacts(cls.family, task, values, source), allow_pickle=allow_pickle)
    with naming(folder / "config.json"):
        config = cls.config_class(**values, source=source)
    return Pretrained(
        model_class=cls,
        config=config,
        task=task,
        folder=folder,
        dtype=_dtype(dtype),
        allow_pickle=allow_pickle,
        has_new_head=has_other_labels,
    )


def _require_labels(task: Task, **given: object) -> None:
    """Refuse label options for a task that has no labels of its own."""
    for name, value in given.items():
        if value is not None and task not in ("classification", "token_classification"):
            shown = name if name == "label_names" else f"{name}={value}"
            raise ConfigError(f"{shown} was given for task={task!r}, which has no labels of its own; leave it out")


def _choose_labels(values: dict[str, Any], num_labels: int | None, label_names: Collection[str] | None) -> bool:
    """Put the wanted labels into `values` and return whether the file's head has another number of them."""
    if label_names is not None:
        if num_labels is not None and num_labels != len(label_names):
            raise ConfigError(f"{len(label_names)} label_names were given with num_labels={num_labels}; give one of the two")
        twice = next((name for name, count in Counter(label_names).items() if count > 1), None)
        if twice is not None:
            raise ConfigError(f"label_names: {twice!r} stands there twice; give each label a name of its own")
        num_labels = len(label_names)
    if num_labels is None:
        return False
    has_other: bool = num_labels != values["num_labels"]
    if has_other or label_names is not None:
        values |= {"num_labels": num_labels, "label_names": None if label_names is None else tuple(label_names)}
    return has_other


def _dtype(dtype: torch.dtype | str) -> Any:
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"dtype={dtype!r} is not known; use 'auto', 'float32', 'bfloat16' or 'float16'")
    return found
