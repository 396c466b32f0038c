"""Measures every family against transformers, and writes what `modelzoo models` and docs/models.md show.

    python tests/conformance/measure.py

For each task and each variant of a family's row, a tiny random model is compared with transformers' own: the largest difference of
an output, over the size of that output where it is above 1, and the largest difference of a gradient. Nothing here is typed in.
"""

import json
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import cases, has_reference, row, saved

from modelzoo.converters import converter_for
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.verification import verify

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT / "modelzoo" / "models" / "parity.json"
PAGE = ROOT / "docs" / "models.md"


def measured() -> dict[str, Any]:
    """Return, for each family, how many models were compared and the worst differences."""
    families: dict[str, dict[str, Any]] = {family: {"compared": 0, "output": 0.0, "gradient": 0.0} for family in FAMILIES}
    for case in cases():
        if not has_reference(case.family):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = verify(saved(case, Path(folder)), task=case.task)
        entry = families[case.family]
        entry["compared"] += 1
        relative = [difference / max(1.0, found.sizes[name]) for name, difference in found.outputs.items()]
        entry["output"] = max(entry["output"], *relative)
        entry["gradient"] = max(entry["gradient"], found.gradient)
    for family, entry in families.items():
        if not entry["compared"]:
            families[family] = {"compared": 0, "reason": row(family).get("reason", "")}
    return {
        "date": date.today().isoformat(),
        "transformers": version("transformers"),
        "torch": version("torch"),
        "families": families,
    }


def page(facts: dict[str, Any]) -> str:
    """Return docs/models.md."""
    lines = [
        "# Models",
        "",
        "Made by `python tests/conformance/measure.py`; nothing on this page is typed in.",
        "",
        "Every figure is the worst over all tasks and variants of tiny random models against transformers "
        f"{facts['transformers']} (torch {facts['torch']}, float32, {facts['date']}): the largest difference of an output, over "
        "its size where that is above 1, and the largest difference of a gradient. A family without a figure is one that "
        "transformers does not have: it is tested against a naive model written from the paper.",
        "",
        "| model_type | class | tasks | compared | outputs | gradients |",
        "|---|---|---|---|---|---|",
    ]
    for family, entry in facts["families"].items():
        tasks = ", ".join(converter_for(family).architectures)
        figures = f"{entry['output']:.1e} | {entry['gradient']:.1e}" if entry["compared"] else "naive model | naive model"
        lines.append(f"| {family} | `{model_class(family).__name__}` | {tasks} | {entry['compared']} | {figures} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    facts = measured()
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    PAGE.write_text(page(facts))
