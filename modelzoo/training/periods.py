"""When something is due: every so many steps, or every so many epochs by samples consumed."""

__all__ = ["is_due", "times_due"]


def is_due(period: int | str | None, *, step: int, before: int, after: int, samples_per_epoch: int) -> bool:
    """Whether a step completes a period.

    Epochs go by samples, so "1ep" is due with the last batch of each epoch and "0.5ep" also with the one that reaches its middle,
    however many steps that takes. A pure function, so a resumed run is due at the same steps.

    Args:
        period: Steps, or epochs as "0.5ep", or None for never.
        step: Steps taken, this one included.
        before: Samples consumed before this step.
        after: Samples consumed with it.
        samples_per_epoch: Of the stream.
    """
    if period is None:
        return False
    if isinstance(period, int):
        return step % period == 0
    samples = _epochs(period) * samples_per_epoch
    # the smallest addition absorbs the rounding of fractions such as 0.1
    return int(after / samples + 1e-9) > int(before / samples + 1e-9)


def times_due(period: int | str | None, *, steps: float, epochs: float) -> float:
    """Return how often a period is completed in so many steps, which are so many epochs; for estimates."""
    if period is None:
        return 0.0
    return steps / period if isinstance(period, int) else epochs / _epochs(period)


def _epochs(period: str) -> float:
    return float(period.removesuffix("ep"))
