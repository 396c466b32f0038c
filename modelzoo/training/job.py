"""What a run trains on what, and where its checkpoints go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from modelzoo.config import RunSettings
from modelzoo.models.model import Model
from modelzoo.plan import Plan
from modelzoo.runtime import CheckpointSaver, Identity, World
from modelzoo.training.evaluation.evaluate import EvaluationSet
from modelzoo.training.step import Dataset

__all__ = ["Job"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is trained on what, and where its checkpoints go."""

    settings: RunSettings
    model: Model
    """Laid out over the ranks."""
    optimizer: Optimizer
    dataset: Dataset
    evaluation: EvaluationSet | None
    """None: nothing is evaluated, and the last weights are the best."""
    identity: Identity
    config: dict[str, Any]
    """What the identity's config hash is of, kept in checkpoints for messages."""
    checkpoints: Path
    total_steps: int
    plan: Plan | None = None
    """What was expected of the run; on rank 0."""

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients could vanish in what the backward computes in."""
        return self.settings.parallel.precision == "float16"

    def saver(self, world: World) -> CheckpointSaver:
        """Return what saves the checkpoints of the run.

        Args:
            world: The processes.
        """
        wanted = self.settings.checkpoint
        return CheckpointSaver(self.checkpoints, world, self.identity, keep_last=wanted.keep_last, background=wanted.background)
