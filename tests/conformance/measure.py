"""Measures every family against transformers, and writes what `modelzoo models` and docs/models.md show.

    python tests/conformance/measure.py

For each task and each variant of a family's row, a tiny random model is compared with transformers' own: the largest difference of
an output, over the size of that output where it is above 1, and the largest difference of a gradient. The parameters of published
checkpoints are counted on models built without storage. Nothing here is typed in.
"""

import json
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import cases, counted, has_reference, row, saved

from modelzoo.cli.families import size_range
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
            families[family] = entry = {"compared": 0}
        entry |= facts_of(family)
    return {
        "date": date.today().isoformat(),
        "transformers": version("transformers"),
        "torch": version("torch"),
        "families": families,
    }


def facts_of(family: str) -> dict[str, Any]:
    """Return what a family's row says beside the comparison: its variants, and the parameters of each published checkpoint."""
    data = row(family)
    return {
        "variants": data["variants"],
        "sizes": {name: counted(family, config) for name, config in data["published"].items()},
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
        "`modelzoo models NAME` shows one family: its classes, sizes, variants and config keys.",
        "",
        "| model_type | class | tasks | sizes | compared | outputs | gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, entry in facts["families"].items():
        tasks = ", ".join(converter_for(family).architectures)
        sizes = size_range(entry["sizes"].values())
        figures = f"{entry['output']:.1e} | {entry['gradient']:.1e}" if entry["compared"] else "naive model | naive model"
        lines.append(f"| {family} | `{model_class(family).__name__}` | {tasks} | {sizes} | {entry['compared']} | {figures} |")
    lines += [
        "",
        "## Published sizes",
        "",
        "Parameters of the models that published configs build: of language models with their head, of others the backbone's.",
        "",
        "| model_type | checkpoint | parameters |",
        "|---|---|---|",
    ]
    for family, entry in facts["families"].items():
        lines += [f"| {family} | {name} | {count:,} |" for name, count in entry["sizes"].items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    facts = measured()
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    PAGE.write_text(page(facts))
