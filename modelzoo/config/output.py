"""The recipe's section `output`: where a run writes, and who else is told its numbers."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from modelzoo.config.keys import Key
from modelzoo.config.section import Section

__all__ = ["OutputSettings"]


def _as_names(value: Any) -> Any:
    """Return a name alone as the one of a list; "none" and null are no name."""
    if value in (None, "none"):
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class OutputSettings(Section):
    """Where a run writes."""

    folder: Annotated[str, Field(min_length=1)] = "runs"
    """Folder of all runs; each run gets a new folder <name>-001, <name>-002, ... below it."""
    name: Annotated[
        str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), Key("", ("run_name",), "a plain file name or null")
    ] = None
    """Name of the run; null is the recipe's name."""
    log_every_s: Annotated[float, Field(gt=0), Key("seconds")] = 60.0
    """Time between two progress lines where the output is not a terminal."""
    trackers: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        BeforeValidator(_as_names),
        Key("", ("report_to",), "a list of tensorboard, wandb, trackio"),
    ] = ()
    """Which services are told the numbers besides metrics.jsonl; a missing package or key is one warning."""
