"""The recipe's section `optimizer`: how far and in what way each step moves the weights."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from modelzoo.config.keys import Key
from modelzoo.config.section import Section

__all__ = ["OptimizerSettings"]


def _as_tuple(value: Any) -> Any:
    """Return a YAML list as the tuple that the field holds."""
    return tuple(value) if isinstance(value, list) else value


def _check_betas(value: tuple[float, float]) -> tuple[float, float]:
    """Return the two decay rates if both are in [0, 1)."""
    if not all(0 <= beta < 1 for beta in value):
        raise ValueError(f"expected two numbers >= 0 and < 1; found {list(value)}")
    return value


class OptimizerSettings(Section):
    """AdamW with decoupled weight decay (Loshchilov and Hutter 2019)."""

    lr: Annotated[float, Field(gt=0, le=10), Key("per step", ("learning_rate",))] = 5e-5
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0, lt=1), Key("per unit of learning rate")] = 0.01
    """Decay of the weights; biases and norms are never decayed."""
    betas: Annotated[
        tuple[float, float],
        BeforeValidator(_as_tuple),
        AfterValidator(_check_betas),
        Key("", (), "a list of two numbers >= 0 and < 1"),
    ] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    eps: Annotated[float, Field(gt=0, le=1), Key("", ("adam_epsilon",))] = 1e-8
    """Added to the root of the second moment."""
    moments: Literal["float32", "8bit"] = "float32"
    """How both moments are kept; 8bit takes 2 bytes a value, not 8, and gives numbers that are near AdamW's but not equal."""
