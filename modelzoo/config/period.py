"""Periods: how often something happens in a run, in optimizer steps or in epochs ("0.5ep")."""

import math
import re

__all__ = ["PERIOD_EXPECTS", "check_period", "period_in_steps"]

PERIOD_EXPECTS = "an integer >= 1 (steps), a number of epochs as 1ep or 0.5ep, or null"

_EPOCHS = re.compile(r"(\d+(?:\.\d+)?|\.\d+)ep")


def check_period(value: int | str | None) -> int | str | None:
    """Return `value` if it is a period.

    Args:
        value: Steps as an integer, epochs as text ("1ep", "0.5ep"), or None for never.

    Raises:
        ValueError: It is neither, or not above zero.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    match = _EPOCHS.fullmatch(value) if isinstance(value, str) else None
    if match is None or float(match.group(1)) <= 0:
        raise ValueError(f"expected {PERIOD_EXPECTS}; found {value!r}")
    return value


def period_in_steps(value: int | str | None, steps_per_epoch: float) -> int | None:
    """Return a period in optimizer steps, at least 1, or None for never.

    Args:
        value: A checked period.
        steps_per_epoch: Optimizer steps in one epoch, above zero.
    """
    value = check_period(value)
    if isinstance(value, str):
        return max(1, math.ceil(float(value.removesuffix("ep")) * steps_per_epoch))
    return value
