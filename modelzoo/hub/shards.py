"""How tensors are divided into files, and the small files beside them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from modelzoo.errors import SaveError

__all__ = ["Spec", "divided", "index_text", "json_text", "shard_bytes", "spec_bytes", "write_file"]

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

Spec = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""dtype and shape of a file's tensors, by key."""


def spec_bytes(spec: Spec) -> int:
    """Return the bytes of a file's tensors."""
    return sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in spec.values())


def shard_bytes(size: str | int) -> int:
    """Return the bytes of "5GB" and the like.

    Raises:
        SaveError: It is no size above zero.
    """
    text = str(size).strip().upper()
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit)), "")
    try:
        value = int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise SaveError(f"max_shard_size={size!r}: expected bytes above 0, or a size such as '5GB' or '500MB'")
    return value


def divided(spec: Spec, limit_bytes: int) -> dict[str, Spec]:
    """Divide tensors into files of at most `limit_bytes` (a larger tensor has a file of its own), with the files' names."""
    shards: list[Spec] = [{}]
    for key, entry in spec.items():
        if shards[-1] and spec_bytes(shards[-1]) + spec_bytes({key: entry}) > limit_bytes:
            shards.append({})
        shards[-1][key] = entry
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{index:05}-of-{len(shards):05}.safetensors": shard for index, shard in enumerate(shards, start=1)}


def json_text(value: object) -> bytes:
    """Return a value as the JSON files of a folder are written."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def index_text(files: Mapping[str, Spec]) -> dict[str, bytes]:
    """Return the index of several shards by its name; nothing for one file."""
    if len(files) == 1:
        return {}
    count = sum(torch.Size(shape).numel() for spec in files.values() for _, shape in spec.values())
    size = sum(spec_bytes(spec) for spec in files.values())
    weight_map = {key: name for name, spec in files.items() for key in spec}
    content = {"metadata": {"total_parameters": count, "total_size": size}, "weight_map": weight_map}
    return {"model.safetensors.index.json": json_text(content)}


def write_file(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
