"""What a step really holds: every storage that an operation makes, counted while it lives."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of the storages that were made inside and are still held by anything, autograd included."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = op(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor):
                self._note(each, before)
        return made

    def _note(self, tensor: Tensor, before: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in before or key in self._known or not storage.nbytes():
            return
        size = storage.nbytes()

        def gone(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def kept_bytes(model: nn.Module, batch: dict[str, Tensor], dtype: torch.dtype | None = None) -> int:
    """Bytes that a training forward leaves for its backward."""
    del dtype
    model.train()
    with LiveBytes() as count:
        output = model(**batch)
        loss = output.loss
        output = None
        kept = count.live
    assert loss.requires_grad
    loss.backward()
    model.zero_grad(set_to_none=True)
    return kept
