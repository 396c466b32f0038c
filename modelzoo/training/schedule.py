"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler state.

Step 0 is the first. During warmup the rate at step s is that of transformers' schedules at s + 1: theirs start at 0, which would
waste the first step. After warmup it is theirs at s. So the peak is reached at the last step of the warmup and held for one more.
"""

import math
from typing import Literal

from modelzoo.errors import ConfigError

__all__ = ["ScheduleName", "lr_at", "warmup_steps"]

ScheduleName = Literal["linear", "cosine", "constant", "noam"]


def lr_at(
    step: int, total_steps: int, *, peak: float, name: ScheduleName = "linear", warmup: float = 0, final_ratio: float = 0.0
) -> float:
    """Return the learning rate of a step.

    linear and cosine fall from the peak towards `final_ratio * peak`, which the step after the last one would have; constant stays;
    noam falls with the inverse square root of the step (Vaswani et al. 2017, scaled so that its peak is `peak`).

    Args:
        step: Number of the step that is about to be taken, from 0.
        total_steps: Steps of the whole run, at least 1.
        peak: Highest rate.
        name: Shape after the warmup.
        warmup: Steps of linear rise; below 1 a fraction of the run, rounded up.
        final_ratio: Share of the peak that linear and cosine fall to, 0 to 1.

    Raises:
        ConfigError: The shape is not known.
    """
    rise = warmup_steps(warmup, total_steps)
    if name == "noam":
        # without a warmup the first step has the peak
        count = step + 1
        return peak * min(count / max(rise, 1), math.sqrt(max(rise, 1) / count))
    if step < rise:
        return peak * (step + 1) / rise
    if name == "constant":
        return peak
    done = min((step - rise) / max(total_steps - rise, 1), 1.0)
    if name == "linear":
        share = 1.0 - done
    elif name == "cosine":
        share = 0.5 * (1.0 + math.cos(math.pi * done))
    else:
        raise ConfigError(f"schedule.name={name!r} is not known; use linear, cosine, constant or noam")
    return peak * (final_ratio + (1.0 - final_ratio) * share)


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Return the warmup in steps: below 1 it is a fraction of the run, rounded up as in transformers."""
    return math.ceil(warmup * total_steps) if warmup < 1 else int(warmup)
