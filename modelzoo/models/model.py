"""What every family of the zoo is: a config, a module built from layers, and the protocol that the runtime sees.

The protocol is two methods. `shard_units()` lists the blocks in forward order: the runtime shards, recomputes, prefetches and
offloads them one by one. `tied_parameters()` lists the parameters that a second module uses as well.
"""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from modelzoo import hub
from modelzoo.converters import Task
from modelzoo.errors import ConfigError
from modelzoo.layers import skip_initialization
from modelzoo.models.pretrained import find_pretrained
from modelzoo.models.summary import Summary, summarize

__all__ = ["Model", "ModelConfig", "ModelOutput", "Task"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """What all families' configs have in common."""

    vocab_size: int
    """Rows of the token embedding."""
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""
    pad_token_id: int | None = 0
    """Id of the padding token, whose embedding starts at zero and gets no gradient; None for no such token."""
    tie_word_embeddings: bool = True
    """Whether a language model's output head is its token embedding."""
    num_labels: int = 2
    """Classes of the classification tasks."""
    label_names: tuple[str, ...] | None = None
    """Name of each class; None for LABEL_0, LABEL_1, ..."""
    source: Mapping[str, Any] | None = None
    """The Hugging Face config that this one was read from, verbatim; None for a config made here."""

    def __post_init__(self) -> None:
        """Check the values that all families share."""
        for name in ("vocab_size", "num_labels"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigError(f"pad_token_id={self.pad_token_id} is not below vocab_size={self.vocab_size}; use an id of the table")
        if not self.initializer_range >= 0:
            raise ConfigError(f"initializer_range={self.initializer_range} must be 0 or more")
        if self.label_names is not None and len(self.label_names) != self.num_labels:
            raise ConfigError(f"{len(self.label_names)} label_names were given for num_labels={self.num_labels}; give one a label")

    def values(self) -> dict[str, Any]:
        """Return the fields that can be chosen as a dict, without `source`."""
        chosen = [each.name for each in dataclasses.fields(self) if each.init and each.name != "source"]
        return {name: getattr(self, name) for name in chosen}


@dataclass(slots=True)
class ModelOutput:
    """What a forward returns; a part that the task does not have is None."""

    loss: Tensor | None = None
    """() float: mean over the supervised targets (labels other than -100); 0 with no gradient where there is none."""
    logits: Tensor | None = None
    """(B, num_labels), (B, T, num_labels) or (B, T, V) float."""
    last_hidden_state: Tensor | None = None
    """(B, T, D) float; zeros at padding."""
    pooler_output: Tensor | None = None
    """(B, D) float."""
    start_logits: Tensor | None = None
    """(B, T) float; the lowest float at padding, which can be no answer."""
    end_logits: Tensor | None = None
    """(B, T) float; as `start_logits`."""


class Model(nn.Module):
    """A model of the zoo: a plain module, on one process or sharded over many without knowing it.

    Args:
        config: Of the family's `config_class`.
        task: Which head it has; one of the family's `tasks`.
    """

    family: ClassVar[str]
    """Hugging Face's `model_type`."""
    config_class: ClassVar[type[ModelConfig]]
    tasks: ClassVar[tuple[Task, ...]]
    num_virtual_tokens: int = 0
    """Vectors that an adapter puts before every text, each with a position of its own."""

    def __init__(self, config: ModelConfig, task: Task) -> None:
        super().__init__()
        if task not in self.tasks:
            raise ConfigError(f"task={task!r} is not one of {type(self).__name__}'s tasks; use {', '.join(self.tasks)}")
        self.config = config
        self.task: Task = task
        self.source_folder: Path | None = None
        self.load_report: hub.LoadReport | None = None

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        raise NotImplementedError

    @property
    def max_text_length(self) -> int:
        """The longest sequence that may be given, in tokens: without what an adapter puts before it."""
        return self.max_length - self.num_virtual_tokens

    def require_task(self, task: Task) -> None:
        """Check what this model was built for.

        Raises:
            ConfigError: It was built for another task.
        """
        if self.task != task:
            raise ConfigError(f"this {type(self).__name__} was built for {self.task}; load it with task={task!r}")

    def shard_units(self) -> list[nn.Module]:
        """Return the blocks in forward order."""
        raise NotImplementedError

    def tied_parameters(self) -> list[tuple[str, str]]:
        """Return (parameter name, name of the other module that uses it) for each tie."""
        return []

    def init_weights(self, only: Collection[str] | None = None) -> None:
        """Give layers their first values, with the config's standard deviation, and recompute the buffers that no file holds.

        Args:
            only: Names of the parameters that may change; buffers are always computed. None for all.
        """
        for prefix, module in self.named_modules():
            initialise = getattr(module, "init_weights", None)
            if module is self or initialise is None:
                continue
            own = {f"{prefix}.{name}": parameter for name, parameter in module.named_parameters(recurse=False)}
            kept = [] if only is None else [name for name in own if name not in only]
            if own and len(kept) == len(own):
                continue
            values = {name: own[name].detach().clone() for name in kept}
            initialise(self.config.initializer_range)
            with torch.no_grad():
                for name, value in values.items():
                    own[name].copy_(value)

    def fill(self, parameter: nn.Parameter, initialise: Callable[[Tensor], object]) -> None:
        """Let a function give a parameter its first values; laid out over ranks or tiers, it is handed the whole one all the same.

        Args:
            parameter: Of this model.
            initialise: Fills a tensor of its shape in place.
        """
        with torch.no_grad():
            initialise(parameter)

    @classmethod
    def from_config(cls, config: ModelConfig, task: Task = "base", *, lay_out: Callable[[nn.Module], object] | None = None) -> Self:
        """Return a model with fresh weights, drawn from torch's global generator.

        Args:
            config: Of the family's `config_class`.
            task: Which head it has.
            lay_out: As of `from_pretrained`; values are the same as without it, drawn one layer at a time.

        Raises:
            ConfigError: The config is another family's, or the family has no such task.
        """
        if not isinstance(config, cls.config_class):
            raise ConfigError(f"{cls.__name__} takes a {cls.config_class.__name__}, not a {type(config).__name__}")
        if lay_out is None:
            model = cls._without_values(config, task)
        else:
            with torch.device("meta"):
                model = cls._without_values(config, task)
            lay_out(model)
        model.init_weights()
        return model

    @classmethod
    def _without_values(cls, config: ModelConfig, task: Task) -> Self:
        with skip_initialization():
            return cls(config, task)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        task: Task | None = None,
        num_labels: int | None = None,
        label_names: Collection[str] | None = None,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        dtype: torch.dtype | str = "auto",
        allow_pickle: bool = False,
        dropout: float | None = None,
        lay_out: Callable[[nn.Module], object] | None = None,
    ) -> Self:
        """Load a Hugging Face checkpoint, strictly, in evaluation mode.

        Args:
            name_or_path: A local folder, or a model's name on the Hugging Face hub; a folder of that name wins.
            task: Which head; None for the one that the checkpoint was saved with. The head is fresh where the file has none.
            num_labels: Classes of a classification head; None for the checkpoint's. Another number makes the head fresh.
            label_names: Name of each class, in the order of their ids; sets `num_labels`.
            revision: Branch, tag or commit on the hub.
            token: Access token of the hub; None for the one that `hf auth login` stored.
            cache_dir: Hugging Face cache to use; None for its own setting.
            local_files_only: Whether the network is left alone; HF_HUB_OFFLINE=1 does the same.
            dtype: Of the parameters: "auto" for the file's, or a torch dtype or its name.
            allow_pickle: Whether an old pytorch_model.bin may be read where there are no safetensors.
            dropout: Replaces every dropout probability of the config; None to keep them.
            lay_out: Lays the model out over processes (`modelzoo.runtime.layout`): it gets the model on meta, and each process then
                reads its own part of the files. None to load the whole model here.

        Raises:
            CheckpointError: Files are missing, malformed, or do not fit the config; the message lists every key.
            ConfigError: The config asks for something that the family does not build.
        """
        return find_pretrained(
            cls,
            name_or_path,
            task=task,
            num_labels=num_labels,
            label_names=label_names,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            dtype=dtype,
            allow_pickle=allow_pickle,
            dropout=dropout,
        ).load(lay_out)

    def facts(self) -> hub.ModelFacts:
        """Return what a checkpoint needs to know of this model."""
        return hub.ModelFacts(
            family=self.family,
            task=self.task,
            values=self.config.values(),
            source=self.config.source,
            source_folder=self.source_folder,
        )

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        max_shard_size: str | int = "50GB",
        overwrite: bool = False,
    ) -> Path:
        """Write a Hugging Face folder that transformers loads strictly, with the tokenizer files that this model came with.

        Args:
            folder: Where to; it must be absent or empty unless `overwrite`.
            dtype: Of the file; None for the parameters' own.
            max_shard_size: Largest weights file, as bytes or as text such as "5GB".
            overwrite: Whether an existing folder is replaced, once the new one is complete.

        Returns:
            The folder.

        Raises:
            SaveError: It exists, or there is no room; what was there is intact.
        """
        return hub.save_pretrained(self, folder, self.facts(), dtype=dtype, max_shard_size=max_shard_size, overwrite=overwrite)

    def summary(self) -> Summary:
        """Return parameters, dtypes and shard units as a table to print."""
        return summarize(self, self.shard_units())
