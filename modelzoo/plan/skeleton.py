"""A model of its true sizes without any memory: from a folder or a hub id, of which its config.json is enough."""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from modelzoo import hub
from modelzoo.converters import Task, converter_for
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.layers import skip_initialization
from modelzoo.models.auto import model_class
from modelzoo.models.model import Model

__all__ = ["skeleton"]


def skeleton(
    name_or_path: str | os.PathLike[str], *, task: Task | None = None, num_labels: int | None = None, dropout: float | None = None
) -> Model:
    """Return a model on meta.

    Args:
        name_or_path: A folder with a config.json, such a file, or a hub id whose config is in the cache or can be fetched.
        task: Which head; None for the config's own.
        num_labels: Classes of a classifier; None for the config's own.
        dropout: Replaces every dropout probability of the config.

    Raises:
        CheckpointError: There is no config.
        ConfigError: It asks for something that its family does not build.
    """
    path = Path(name_or_path)
    folder = path.parent if path.name == "config.json" else hub.resolve(name_or_path, with_weights=False)
    source = hub.read_config(folder)
    if "model_type" not in source:
        raise ConfigError(f"{folder / 'config.json'}: model_type: expected the family's name, found no such key; add it")
    cls = model_class(source["model_type"])
    converter = converter_for(cls.family)
    task = converter.default_task(source) if task is None else task
    if task not in cls.tasks:
        raise ConfigError(f"task={task!r} is not one of {cls.__name__}'s tasks; use {', '.join(cls.tasks)}")
    values: dict[str, Any] = converter.read_config(source, task)
    if num_labels is not None:
        values |= {"num_labels": num_labels, "label_names": None}
    if dropout is not None:
        values |= {name: dropout for name in values if name.endswith("dropout")}
    if converter.is_tied_by_tensors:
        # where the weights lie here as well, their files say whether the head is the token table, as they do to the loader
        with contextlib.suppress(CheckpointError):
            values["tie_word_embeddings"] = hub.are_tied(folder, hub.ModelFacts(cls.family, task, values, source))
    config = cls.config_class(**values, source=source)
    with torch.device("meta"), skip_initialization():
        return cls(config, task)
