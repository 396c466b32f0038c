"""How fast a run goes, and how long the rest of it takes."""

import time
from collections import deque
from dataclasses import dataclass

__all__ = ["Pace"]

WINDOW = 50
FORWARD_SHARE = 1 / 3
"""Of a training step's time a forward alone takes: the backward costs two forwards."""


@dataclass(frozen=True, slots=True)
class _Step:
    seconds: float
    waited_s: float
    tokens: int
    samples: int


class Pace:
    """Averages over the last steps, and an estimate of the whole run with its evaluations.

    Args:
        total_steps: Steps of the run.
        evaluation_tokens: Tokens of one evaluation; 0 for none.
    """

    def __init__(self, total_steps: int, evaluation_tokens: int = 0) -> None:
        self._total_steps = total_steps
        self._evaluation_tokens = evaluation_tokens
        self._steps: deque[_Step] = deque(maxlen=WINDOW)
        self._evaluation_s: float | None = None
        self.started = time.monotonic()

    def add_step(self, seconds: float, waited_s: float, tokens: int, samples: int) -> None:
        """Note a step: its time, the part of it spent on getting the data, and what it consumed over all ranks."""
        self._steps.append(_Step(seconds, waited_s, tokens, samples))

    def add_evaluation(self, seconds: float) -> None:
        """Note how long an evaluation took."""
        self._evaluation_s = seconds

    @property
    def tokens_per_s(self) -> float:
        """Real tokens a second while training."""
        return self._over_time(sum(step.tokens for step in self._steps))

    @property
    def samples_per_s(self) -> float:
        """Samples a second while training."""
        return self._over_time(sum(step.samples for step in self._steps))

    @property
    def wait_share(self) -> float:
        """Share of the training time spent on getting data, 0 to 1."""
        return self._over_time(sum(step.waited_s for step in self._steps))

    def eta_s(self, step: int, evaluations_left: float) -> float:
        """Return the seconds to the end of the run.

        Args:
            step: Steps taken.
            evaluations_left: How many evaluations are still to come.
        """
        each = sum(step.seconds for step in self._steps) / max(len(self._steps), 1)
        evaluation_s = self._evaluation_s
        if evaluation_s is None:
            speed = self.tokens_per_s
            evaluation_s = FORWARD_SHARE * self._evaluation_tokens / speed if speed else 0.0
        return each * (self._total_steps - step) + evaluation_s * evaluations_left

    def _over_time(self, amount: float) -> float:
        seconds = sum(step.seconds for step in self._steps)
        return amount / seconds if seconds else 0.0
