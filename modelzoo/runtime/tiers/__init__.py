"""Tiers: parameters, gradients and moments of a block live on the device, in host memory or on disk, under a budget each."""

from modelzoo.runtime.tiers.adamw import TieredAdamW
from modelzoo.runtime.tiers.attach import attach_tiers, budget_bytes, sizes_of, tiers_of
from modelzoo.runtime.tiers.engine import Tiers
from modelzoo.runtime.tiers.placement import Placement, Sizes, place_units

__all__ = ["Placement", "Sizes", "TieredAdamW", "Tiers", "attach_tiers", "budget_bytes", "place_units", "sizes_of", "tiers_of"]
