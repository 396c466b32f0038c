"""What makes two runs the same run: the settings that the result depends on, and the data as the model sees it."""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from modelzoo.config import RunSettings
from modelzoo.errors import CheckpointError, listing
from modelzoo.runtime import Found, Identity

__all__ = ["check_identity", "deciding_settings", "identity_of"]

FREE_SECTIONS = ("description", "output", "runtime", "checkpoint", "memory")
FREE_KEYS = {
    "model": ("name", "revision", "allow_pickle"),
    "data": ("name", "train", "validation", "test"),
    "parallel": ("ranks", "data_shard", "data_replicate", "tensor", "zero", "recompute", "compile", "timeout_s"),
}
"""What may change between a stop and a resume: places, and the layout over processes. The weights are the checkpoint's, and data
have a fingerprint."""

UNNAMED = (("optimizer.moments", "float32"),)
"""What is not said where it is as it was before there was a choice: older checkpoints go on."""


def deciding_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that the numbers of a run depend on, as flat JSON values."""
    flat: dict[str, Any] = {}
    for section, values in settings.model_dump(mode="json").items():
        if section in FREE_SECTIONS or (section == "adapter" and not settings.adapter.is_used):
            continue
        if not isinstance(values, dict):
            flat[section] = values
            continue
        for key, value in values.items():
            if key not in FREE_KEYS.get(section, ()):
                flat[f"{section}.{key}"] = value
    return {key: value for key, value in flat.items() if (key, value) not in UNNAMED}


def identity_of(settings: RunSettings, data_fingerprint: str, base: Mapping[str, str] = MappingProxyType({})) -> Identity:
    """Return the identity of a run for its checkpoints.

    Args:
        settings: Of the run.
        data_fingerprint: Of its data.
        base: Fingerprint of the frozen base that checkpoints leave out.
    """
    text = json.dumps({**deciding_settings(settings), **base}, sort_keys=True)
    return Identity(hashlib.sha256(text.encode()).hexdigest(), data_fingerprint)


def check_identity(found: Found, saved_config: Mapping[str, Any], config: Mapping[str, Any], identity: Identity) -> None:
    """Refuse to continue a checkpoint with other settings or other data.

    Args:
        found: The checkpoint.
        saved_config: Its deciding settings.
        config: Those of the run.
        identity: Of the run.

    Raises:
        CheckpointError: They differ; the message shows both values.
    """
    manifest = found.manifest
    problems = []
    if manifest.config_hash != identity.config_hash:
        for key in sorted({*config, *saved_config}):
            if config.get(key) != saved_config.get(key):
                problems.append(f"{key}: the checkpoint has {saved_config.get(key)!r}, the run now has {config.get(key)!r}")
        if "base" in config and config["base"] != saved_config.get("base"):
            problems.append(
                "the base is frozen, and checkpoints leave it out: put back the files of model.name that the run began with"
            )
    if manifest.data_fingerprint != identity.data_fingerprint:
        problems.append(
            f"data: the checkpoint has fingerprint {manifest.data_fingerprint[:16]}, the files now have "
            f"{identity.data_fingerprint[:16]}: rows, labels or the tokenizer changed"
        )
    if problems:
        raise CheckpointError(
            f"{found.path}: was made by another run; put things back as they were, or start a new run\n{listing(problems)}"
        )
