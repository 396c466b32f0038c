"""The states of the random generators of this process, as tensors: torch (CPU and accelerator), Python and numpy."""

import hashlib
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modelzoo.errors import CheckpointError

__all__ = ["collect_random_state", "restore_random_state", "seed_everything", "seed_from"]

PYTHON_VERSION = 3


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), Python's `random` and numpy's legacy generator.

    Args:
        seed: At least 0; numpy's takes it modulo 2**32.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def collect_random_state() -> dict[str, Tensor]:
    """Return the generator states of this process: `torch`, `python`, `python_gauss`, `numpy`, `numpy_gauss`, `cuda` if used."""
    _, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = _numpy_state()
    assert kind == "MT19937"
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([math.nan if gauss is None else gauss], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Put back what `collect_random_state` returned. Do it last, when nothing else draws any more.

    Raises:
        CheckpointError: A generator's state is missing or not one.
    """
    missing = {"torch", "python", "python_gauss", "numpy", "numpy_gauss"} - set(state)
    if missing:
        raise CheckpointError(f"random state: missing {sorted(missing)}; found {sorted(state)}")
    try:
        gauss = float(state["python_gauss"])
        random.setstate((PYTHON_VERSION, tuple(state["python"].tolist()), None if math.isnan(gauss) else gauss))
        *keys, position, has_gauss = state["numpy"].tolist()
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, float(state["numpy_gauss"])))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        torch.set_rng_state(state["torch"])
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        raise CheckpointError(f"random state: not a generator's state: {error}") from error


def seed_from(state: Mapping[str, Tensor], number: int) -> None:
    """Seed all generators at a place that these states and `number` alone decide, unlike that of another number or any earlier one.

    Args:
        state: What `collect_random_state` returned on another rank.
        number: Which of the places.
    """
    digest = hashlib.sha256(f"{number}:".encode() + state["torch"].numpy().tobytes()).digest()
    seed_everything(int.from_bytes(digest[:8], "little") >> 1)


def _numpy_state() -> tuple[Any, ...]:
    state = np.random.get_state(legacy=True)
    assert isinstance(state, tuple)
    return state
