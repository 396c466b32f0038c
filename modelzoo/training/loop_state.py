"""What the loop knows beside tensors: where it is, and what it has seen. JSON values, part of every checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from modelzoo.errors import CheckpointError
from modelzoo.training.loss_scale import LossScale

__all__ = ["NEXT_SAMPLES", "LoopState"]

NEXT_SAMPLES = 4
"""Samples of the next batch that a state names."""


@dataclass(slots=True)
class LoopState:
    """The state of a run between two steps."""

    step: int = 0
    """Optimizer steps taken."""
    position: int = 0
    """Samples consumed since the start: the state of the stream."""
    tokens: int = 0
    """Real tokens consumed since the start."""
    best_step: int | None = None
    """Step of the best evaluation."""
    best_value: float | None = None
    """Its metric."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """All evaluations so far: step, epoch and metrics."""
    next_samples: list[int] = field(default_factory=list)
    """The first samples that were to come next when the state was saved; a resumed run compares them with its own."""
    seconds: float = 0.0
    """Time spent in the loop, over all its parts."""

    loss_scale: LossScale = field(default_factory=LossScale)
    """Of a float16 run; of no use to others."""

    is_evaluation_due: bool = False
    """Whether the evaluation of this step was due and did not finish, because the run was asked to stop."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the state that `to_json` gave.

        Raises:
            CheckpointError: A field is missing or not known.
        """
        try:
            scale = LossScale(**values["loss_scale"]) if "loss_scale" in values else LossScale()
            return cls(**{**values, "loss_scale": scale})
        except TypeError as error:
            raise CheckpointError(f"state of the loop: {error}; it was saved by another version") from error
