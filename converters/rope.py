"""Rotary positions in Hugging Face's configs: the forms before and since version 5, read and written in one place.

Version 5 has one object, `rope_parameters`, with `rope_theta`, `rope_type` and the type's own numbers; before it, `rope_theta` and
`rope_scaling` stood side by side, and the type was called `type`.
"""

from collections.abc import Mapping
from typing import Any

from modelzoo.converters.config_table import Derived
from modelzoo.errors import ConfigError

__all__ = ["rope"]

_KINDS = ("linear", "dynamic", "yarn", "llama3")
_NUMBERS = {
    "factor": "factor",
    "original_max_positions": "original_max_position_embeddings",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_positions"),
    "llama3": ("factor", "original_max_positions", "low_frequency_factor", "high_frequency_factor"),
}
_KNOWN_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *_NUMBERS.values()}


def rope(theta: float = 10000.0) -> Derived:
    """Return the arguments `rope_theta` and `rope_scaling` of our configs.

    Args:
        theta: What an absent `rope_theta` means for the family.
    """
    return Derived(lambda source: _read(source, theta), lambda values, result: _write(values, result))


def _stated(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a config says of rotary positions, in one object."""
    stated: dict[str, Any] = {}
    for field in ("rope_scaling", "rope_parameters"):
        value = source.get(field)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"{field}: expected an object or null, found {value!r:.80}")
        stated |= value
    if "rope_theta" not in stated and source.get("rope_theta") is not None:
        stated["rope_theta"] = source["rope_theta"]
    return stated


def _read(source: Mapping[str, Any], default_theta: float) -> dict[str, Any]:
    stated = _stated(source)
    theta = _number("rope_theta", stated.get("rope_theta", default_theta))
    kind = stated.get("rope_type", stated.get("type"))
    if kind is None and set(stated) - {"rope_theta", "partial_rotary_factor"}:
        field = "rope_scaling" if source.get("rope_parameters") is None else "rope_parameters"
        raise ConfigError(
            f"{field}: expected a rope_type (default, {', '.join(_KINDS)}) beside {_named(stated)}, found nothing of that name"
        )
    kind = "default" if kind is None else kind
    if kind != "default" and kind not in _KINDS:
        raise ConfigError(f"rope_type: expected one of default, {', '.join(_KINDS)}, found {kind!r:.80}")
    strange = {name: value for name, value in stated.items() if name not in _KNOWN_KEYS}
    if strange:
        raise ConfigError(f"rope_parameters: expected the numbers of rope_type {kind!r}, found also {_named(strange)}, not built")
    if stated.get("partial_rotary_factor", 1) != 1:
        raise ConfigError(f"partial_rotary_factor: expected 1 or nothing, found {stated['partial_rotary_factor']!r:.80}")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    scaling: dict[str, Any] = {"kind": kind}
    for ours, theirs in _NUMBERS.items():
        if stated.get(theirs) is not None:
            scaling[ours] = _number(theirs, stated[theirs])
    if kind == "dynamic":
        scaling.setdefault("original_max_positions", source.get("max_position_embeddings", 2048))
    missing = [_NUMBERS[name] for name in _NEEDED[kind] if name not in scaling]
    if missing:
        raise ConfigError(f"rope_parameters: expected {', '.join(missing)} for rope_type {kind!r}, found nothing")
    return {"rope_theta": theta, "rope_scaling": scaling}


def _named(stated: Mapping[str, Any]) -> str:
    return ", ".join(sorted(stated))


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise ConfigError(f"{name}: expected a number above 0, found {value!r:.80}")
    return value


def _write(values: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Write the form of version 5."""
    for field in ("rope_theta", "rope_scaling"):
        result.pop(field, None)
    scaling = values["rope_scaling"]
    stated: dict[str, Any] = {"rope_theta": values["rope_theta"], "rope_type": "default" if scaling is None else scaling["kind"]}
    for ours, theirs in _NUMBERS.items():
        if scaling is not None and scaling.get(ours) is not None:
            stated[theirs] = scaling[ours]
    result["rope_parameters"] = stated
