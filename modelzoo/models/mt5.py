"""mT5 (Xue et al., 2021): T5 v1.1 in a hundred languages."""

from modelzoo.models.t5 import T5
from modelzoo.models.t5_config import MT5Config

__all__ = ["MT5"]


class MT5(T5):
    """mT5: T5 v1.1 with a vocabulary of a hundred languages.

    Args:
        config: Sizes and options.
        task: As of `T5`.
    """

    family = "mt5"
    config_class = MT5Config
