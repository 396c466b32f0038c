"""How the layers get their first values, and how a loader that will overwrite them skips that work.

Every layer with parameters or buffers has `init_weights(std)`, calls it when it is built, and a model calls it again on all of its
layers with the config's standard deviation. After `to_empty` the same call makes every non-persistent buffer right again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

__all__ = ["DEFAULT_STD", "init_when_built", "skip_initialization"]

DEFAULT_STD = 0.02  # BERT's and GPT-2's `initializer_range`

_SKIPPED: ContextVar[bool] = ContextVar("initialization_skipped", default=False)


@contextmanager
def skip_initialization() -> Iterator[None]:
    """Build layers without filling their parameters: their values are garbage until loaded or until `init_weights` is called.

    Buffers are always computed. The setting holds for the current thread or task alone.
    """
    token = _SKIPPED.set(True)
    try:
        yield
    finally:
        _SKIPPED.reset(token)


class _Layer(Protocol):
    def init_weights(self, std: float = DEFAULT_STD) -> None: ...


def init_when_built(layer: _Layer) -> None:
    """Call `layer.init_weights()` at the end of a constructor, unless building inside `skip_initialization()`."""
    if not _SKIPPED.get():
        layer.init_weights()
