"""Where a model's values live: the recipe's section `memory`, with a budget for each tier."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from modelzoo.config.keys import Key
from modelzoo.config.section import Section

__all__ = ["DiskConfig", "MemoryConfig", "parse_size"]

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|%)?")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE_EXPECTS = 'a size such as "20GiB" or "60%", auto or null'


def parse_size(text: str, total_bytes: int) -> int:
    """Return a size in bytes.

    Args:
        text: "20GiB", "512MiB", "1000000" (bytes) or "60%" of the total.
        total_bytes: What percentages are of.

    Raises:
        ValueError: Not a size, or none at all.
    """
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected {SIZE_EXPECTS}, found {text!r}")
    number, unit = float(found[1]), found[2] or "B"
    size = int(total_bytes * number / 100) if unit == "%" else int(number * UNITS[unit])
    if size <= 0 or (unit == "%" and number > 100):
        raise ValueError(f"expected a size above 0 and at most 100%, found {text!r}")
    return size


def _check_size(value: str | None) -> str | None:
    if value is not None and value != "auto":
        parse_size(value, 2**40)
    return value


Size = Annotated[str | None, AfterValidator(_check_size), Key("bytes", (), SIZE_EXPECTS)]


class DiskConfig(Section):
    """The disk as a tier."""

    path: Annotated[str | None, Key("", ("offload_folder", "nvme_path"))] = None
    """Folder for the values that are on disk during the run, on a fast local disk; null uses no disk."""
    budget: Size = None
    """Most bytes of it that this run takes; null is what is free, less a margin."""


class MemoryConfig(Section):
    """How much of each tier a process may fill, and when the optimizer works."""

    device: Size = None
    """Bytes of an accelerator for the model, its states and activations; null and auto are what is free less a margin."""
    host: Size = None
    """Bytes of the host for the same, or for what lives below an accelerator; null is all, auto what is free less a margin."""
    disk: DiskConfig = DiskConfig()
    placement: Literal["plan", "static"] = "plan"
    """Who decides where a block's values live: plan keeps what costs most traffic, static fills the tiers in forward order."""
    optimizer_update: Literal["step", "in_backward", "deferred"] = "step"
    """When a block's values are updated: after the backward, in it (without clipping), or before its next forward; 1st = 3rd."""
    activations: Literal["keep", "offload"] = "keep"
    """Where the inputs of blocks that are computed again (parallel.recompute) wait for the backward; offload sends them to disk."""
    slots: Annotated[int, Field(ge=2, le=64), Key("blocks")] = 3
    """Blocks that may be on their way from a lower tier at a time; each takes the memory of the largest block."""

    @property
    def is_used(self) -> bool:
        """Whether anything may leave its place."""
        return self.device is not None or self.host is not None or self.disk.path is not None

    @model_validator(mode="after")
    def _has_a_place(self) -> "MemoryConfig":
        if self.disk.budget is not None and self.disk.path is None:
            raise ValueError(f"disk.budget={self.disk.budget} has no disk.path; give the folder, or remove the budget")
        return self
