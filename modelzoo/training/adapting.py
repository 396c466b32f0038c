"""What a recipe's `adapter` means for a run: the base is frozen and found again, what is trained is said, saved and written."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from modelzoo.adapters import (
    add_adapter,
    describe_base,
    initialize_adapter,
    is_adapter_name,
    is_quantized,
    save_adapter,
    trained_parts,
)
from modelzoo.config import RunSettings
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.hub.files import WEIGHT_FILES
from modelzoo.models.model import Model
from modelzoo.models.pretrained import Pretrained
from modelzoo.runtime import World, raise_together
from modelzoo.runtime.prepare import DTYPES
from modelzoo.training.attempt import attempt

__all__ = ["base_fingerprint", "describe_trained", "load_for_run", "skeleton_for_run", "write_final"]

READ_BYTES = 16 * 2**20


def skeleton_for_run(settings: RunSettings, pretrained: Pretrained[Model]) -> Model:
    """Return the model of a run on meta, with its adapter.

    Raises:
        ConfigError: The adapter does not fit the model.
    """
    model = pretrained.skeleton()
    if settings.adapter.is_used:
        add_adapter(model, settings.adapter)
    return model


def load_for_run(settings: RunSettings, pretrained: Pretrained[Model], lay_out: Callable[[nn.Module], nn.Module]) -> Model:
    """Load the model of a run, laid out, with a new adapter where the settings want one. Collective.

    Raises:
        ConfigError: The adapter does not fit the model, or a part that the file lacks would stay as it was drawn.
        CheckpointError: The model cannot be loaded.
    """
    if not settings.adapter.is_used:
        return pretrained.load(lay_out)

    def adapt(model: nn.Module) -> nn.Module:
        add_adapter(model, settings.adapter)
        if not settings.memory.is_used:  # the tiers move float32 alone
            _store_in(model, DTYPES[settings.parallel.precision])
        return lay_out(model)

    model = pretrained.load(adapt)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    drawn = [name for name in (model.load_report.new if model.load_report else ()) if not flags.get(name, True)]
    if drawn:
        parts = sorted({name.rpartition(".")[0].partition(".")[0] for name in drawn})
        raise ConfigError(
            f"adapter: {', '.join(drawn[:4])} are new, not in the file, and would stay as they were drawn; "
            f"add adapter.train_also=[{','.join(parts)}]"
        )
    initialize_adapter(model)
    frozen = {name for name, is_trained in flags.items() if not is_trained}
    vars(model)["found_elsewhere"] = frozenset(frozen)
    return model


def _store_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Give the frozen parameters of a model on meta the dtype that they are computed with: no step needs more of them.

    Args:
        model: On meta.
        dtype: Of the computation; None for float32.
    """
    known: dict[int, nn.Parameter] = {}
    for module in model.modules() if dtype is not None else ():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                kept = known.setdefault(id(parameter), nn.Parameter(parameter.to(dtype), requires_grad=False))
                module._parameters[name] = kept


def describe_trained(model: nn.Module) -> list[str]:
    """Return the lines that say how much is trained, of the whole tensors: all of it, and what is no adapter."""
    total = sum(parameter.numel() for name, parameter in model.named_parameters() if not is_adapter_name(name))
    parts = trained_parts(model)
    trained = sum(parts.values())
    total += parts.get("adapter", 0)
    lines = [f"trainable {trained:,} of {total:,} parameters ({100 * trained / total:.2f} %)"]
    whole = {name: count for name, count in parts.items() if name != "adapter"}
    if whole:
        sizes = [f"{name} {count:,} ({4 * count / 2**20:.2f} MiB)" for name, count in whole.items()]
        lines.append(f"         trained whole: {', '.join(sizes)}")
    return [*lines, describe_base(model)] if is_quantized(model) else lines


def base_fingerprint(settings: RunSettings, folder: Path, world: World) -> dict[str, str]:
    """Return what makes the frozen base of a run the same: a hash of its weights files, none for a run without one. Collective.

    Checkpoints leave the base out, so that resuming on another one would not be the same run.

    Raises:
        CheckpointError: A file cannot be read.
    """
    if not settings.adapter.is_used:
        return {}
    found, error = attempt(lambda: _hash(folder)) if world.is_main else ("", None)
    raise_together(world, error)
    return {"base": world.broadcast(found or "")}


def _hash(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if WEIGHT_FILES.fullmatch(path.name)):
        total.update(path.name.encode())
        try:
            with path.open("rb") as file:
                while piece := file.read(READ_BYTES):
                    total.update(piece)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return total.hexdigest()


def write_final(settings: RunSettings, model: Model, folder: Path) -> str | None:
    """Write what a run gives, as a plain Hugging Face folder, or as PEFT's beside a frozen base. Collective.

    Returns:
        A line about an adapter.
    """
    if not settings.adapter.has_file:
        model.save_pretrained(folder, overwrite=True)
        return None
    name = settings.model.name
    report = save_adapter(model, folder, base=name, revision=settings.model.revision, overwrite=True)
    return f"adapter  {report}"
