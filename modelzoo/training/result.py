"""How a run ended."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from modelzoo.training.signals import Stopped

__all__ = ["RunResult"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What `train` and `resume` return, the same on every rank."""

    folder: Path
    """Of the run."""
    stopped: Stopped
    """"finished", "interrupted" (Ctrl-C) or "preempted" (SIGTERM); the last two were saved and can be resumed."""
    final: Path | None = None
    """The Hugging Face folder of the result; None if the run is not finished."""
    step: int = 0
    """Optimizer steps taken."""
    total_steps: int = 0
    """Optimizer steps of the whole run."""
    metric: str = "loss"
    """Which metric decides about the best weights."""
    best_metric: float | None = None
    """Its best value; None without an evaluation."""
    best_step: int | None = None
    """Step of that value."""
    majority: float | None = None
    """Accuracy of always answering with the commonest label of the validation data; None for other tasks."""
    test: Mapping[str, float] | None = None
    """Metrics of the kept weights on the test data, if there are any."""
    history: tuple[Mapping[str, Any], ...] = field(default=())
    """All evaluations: step, epoch and metrics."""
    seconds: float = 0.0
    """Time spent in the loop, over all its parts."""

    @property
    def exit_code(self) -> int:
        """What the command returns: 0, 75 for a run that can be resumed after SIGTERM, 130 after Ctrl-C."""
        return {"finished": 0, "preempted": 75, "interrupted": 130}[self.stopped]

    @property
    def resume_command(self) -> str:
        """The command that continues the run."""
        return f"modelzoo resume {self.folder}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without the places where it is stored."""
        values = asdict(self)
        del values["folder"], values["final"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], folder: Path, final: Path | None) -> Self:
        """Return what `to_json` gave, in its folders."""
        return cls(**{**values, "history": tuple(values["history"])}, folder=folder, final=final)
