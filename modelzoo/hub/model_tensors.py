"""A model's own tensors by canonical name, and putting loaded ones into them, plain or sharded."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from modelzoo.errors import CheckpointError
from modelzoo.sharded import full_tensor, held, is_away, is_sharded, write_local, write_whole

__all__ = ["Slot", "gathered", "has_adapter", "is_filled_in_place", "put_local", "slots"]

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclass
class Slot:
    """One tensor of a model and every place where it hangs (more than one when it is tied).

    Attributes:
        tensor: The parameter or persistent buffer; a DTensor when it is sharded.
        places: (module, attribute) pairs.
    """

    tensor: Tensor
    places: list[tuple[nn.Module, str]] = field(default_factory=list)

    def put(self, value: Tensor) -> None:
        """Make `value` the tensor's content without a copy; its dtype becomes the tensor's.

        A tensor on meta is replaced in all its places; any other keeps its identity, so optimizers that hold it see the change.
        """
        if isinstance(self.tensor, nn.Parameter) and self.tensor.device.type != "meta" and type(value) is Tensor:
            self.tensor.data = value.to(self.tensor.device)
            return
        new: Tensor = value if self.tensor.device.type == "meta" else value.to(self.tensor.device)
        if isinstance(self.tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=self.tensor.requires_grad)
        for module, name in self.places:
            setattr(module, name, new)
        self.tensor = new

    def kept(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a loaded value as it is stored: in a dtype, or as its module keeps it."""
        keepers = [getattr(module, "keep_weight", None) for module, name in self.places if name == "weight"]
        keep = next((each for each in keepers if each is not None), None)
        return value.to(dtype) if keep is None else keep(value)


def has_adapter(model: nn.Module) -> bool:
    """Return whether something that is no part of the model's own files is attached to it."""
    return any(getattr(module, "is_adapter", False) for module in model.modules())


def slots(model: nn.Module) -> dict[str, Slot]:
    """Return a model's parameters and persistent buffers by name, each once; names of wrappers are left out.

    A tied tensor stands under the first of its names. What an adapter holds (`is_adapter`) is no part of a model's own files.
    """
    attached = [f"{name}." for name, module in model.named_modules() if getattr(module, "is_adapter", False)]
    stored = {name for name in model.state_dict(keep_vars=True) if not name.startswith(tuple(attached))}
    result: dict[str, Slot] = {}
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        canonical = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        if name not in stored and canonical not in stored:
            continue
        path, _, attribute = name.rpartition(".")
        slot = result.setdefault(first.setdefault(id(tensor), canonical), Slot(tensor))
        slot.places.append((model.get_submodule(path), attribute))
    return result


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole tensor: of a DTensor all ranks must ask for it together."""
    return full_tensor(tensor).detach()


def is_filled_in_place(tensor: Tensor) -> bool:
    """Return whether a loaded value is copied into a tensor, because it is sharded or lives in a lower tier, and not put there."""
    return is_sharded(tensor) or is_away(tensor)


def put_local(slot: Slot, name: str, value: Tensor, *, whole: bool) -> None:
    """Copy a value into this rank's part of a tensor that is sharded or lives in a lower tier.

    Args:
        slot: `is_filled_in_place` holds for its tensor.
        name: For messages.
        value: The whole tensor, or this rank's box of it.
        whole: Which of the two it is.

    Raises:
        CheckpointError: The DTensor has no memory yet.
    """
    tensor = slot.tensor
    if held(tensor).device.type == "meta":
        raise CheckpointError(f"{name}: expected memory to load into, found a sharded parameter on meta; call to_empty first")
    (write_whole if whole else write_local)(tensor, value)
