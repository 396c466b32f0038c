"""Run settings: the schema of a recipe, its loading and its checks. Imports neither torch nor transformers."""

from modelzoo.config.keys import KeyInfo
from modelzoo.config.load import Resolved, change_settings, dump_settings, load_settings, read_settings, resolve_settings
from modelzoo.config.memory import MemoryConfig
from modelzoo.config.parallel import ParallelConfig
from modelzoo.config.period import period_in_steps
from modelzoo.config.recipes import recipe_names, recipe_path
from modelzoo.config.schema import METRICS, RunSettings

__all__ = [
    "METRICS",
    "KeyInfo",
    "MemoryConfig",
    "ParallelConfig",
    "Resolved",
    "RunSettings",
    "change_settings",
    "dump_settings",
    "load_settings",
    "period_in_steps",
    "read_settings",
    "recipe_names",
    "recipe_path",
    "resolve_settings",
]
