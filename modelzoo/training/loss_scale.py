"""The factor on a float16 loss that keeps small gradients from becoming zero (Micikevicius et al., 2018, section 3.2)."""

from dataclasses import dataclass

__all__ = ["LossScale"]

LARGEST = 2.0**24


@dataclass(slots=True)
class LossScale:
    """A power of two, so that multiplying and dividing by it changes no digit. It doubles after a while and halves on overflow.

    Growth and start are those of `torch.amp.GradScaler`.
    """

    scale: float = 2.0**16
    """What the loss is multiplied by."""
    growth_interval: int = 2000
    """Steps without an overflow after which it doubles."""
    good_steps: int = 0
    """Steps since it changed."""

    def step_was_taken(self) -> None:
        """Note a step whose gradients were finite."""
        self.good_steps += 1
        if self.good_steps >= self.growth_interval:
            self.scale, self.good_steps = min(self.scale * 2, LARGEST), 0

    def step_overflowed(self) -> bool:
        """Halve the scale and return whether there is any left: at 1 an overflow is not the scale's."""
        if self.scale <= 1:
            return False
        self.scale, self.good_steps = self.scale / 2, 0
        return True
