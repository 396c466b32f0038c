"""Tiers: parameters, gradients and moments of a block live on the device, in host memory or on disk, under a budget each."""

from modelzoo.runtime.tiers.adamw import TieredAdamW
from modelzoo.runtime.tiers.attach import attach_tiers, tiers_of
from modelzoo.runtime.tiers.engine import Tiers

__all__ = ["TieredAdamW", "Tiers", "attach_tiers", "tiers_of"]
