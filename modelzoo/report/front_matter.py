"""What the README of a model folder says of it at its top, between two lines of dashes."""

from pathlib import Path
from typing import Any

import yaml

__all__ = ["front_matter", "license_of"]

MOST_BYTES = 2**20


def front_matter(folder: Path) -> dict[str, Any]:
    """Return the YAML at the top of a folder's README.md; empty where there is none that can be read."""
    path = folder / "README.md"
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= MOST_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return {}
    if not text.startswith("---"):
        return {}
    try:
        found = yaml.safe_load(text[3:].partition("\n---")[0])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def license_of(folder: Path) -> str | None:
    """Return the licence that a folder's README states, or None."""
    known = front_matter(folder)
    found = known.get("license_name") if known.get("license") == "other" else known.get("license")
    return found if isinstance(found, str) and found else None
