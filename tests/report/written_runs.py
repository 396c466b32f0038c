"""The folder of a run as a run leaves it, written by hand: no model, no torch."""

import json
import math
from pathlib import Path
from typing import Any

import yaml

from modelzoo.config import RunSettings, dump_settings

HOSTILE = '<script>alert("x")</script>&\'"'

REPORT = {
    "rows": 360,
    "items": 360,
    "dropped_rows": 0,
    "truncated_rows": 36,
    "cut_tokens": 99,
    "lost_targets": 0,
    "tokens": 19619,
    "longest": 512,
    "num_targets": 360,
    "label_counts": {"false": 180, "true": 180},
}
MEASURED = {
    "layout": {"zero": 0},
    "steps": 40,
    "seconds": {"data": 0.001, "compute": 0.05, "communication": 0.0, "optimizer": 0.002},
    "sent_bytes": {"gather": 2**20},
    "units": [
        {
            "name": "encoder.layers.0",
            "parameters": 132480,
            "whole_bytes": 529920,
            "parameter_bytes": 529920,
            "gradient_bytes": 0,
            "moment_bytes": 1059904,
        }
    ],
    "tiers": None,
    "plan": {
        "predicted_bytes": 461156648,
        "measured_bytes": 474755072,
        "predicted_step_s": 0.05,
        "measured_step_s": 0.057,
        "bound": "compute",
    },
}


def write_run(folder: Path, *, steps: int = 40, ending: str | None = "finished", name: str = "tiny", **settings: Any) -> Path:
    """Write a run of so many steps with an evaluation every ten; ending None leaves it without a result, as a killed one."""
    folder.mkdir(parents=True)
    values: dict[str, Any] = {
        "recipe": name,
        "model": {"name": "some/model"},
        "data": {"train": "t.jsonl", "validation": "v.jsonl"},
    }
    for key, value in settings.items():
        section, _, inner = key.partition("__")
        if inner:
            values.setdefault(section, {})[inner] = value
        else:
            values[section] = value
    text = dump_settings(RunSettings.model_validate(values))
    (folder / "resolved.yaml").write_text(text)
    (folder / "recipe.yaml").write_text("# as it was written\n" + yaml.safe_dump(values))
    (folder / "command.txt").write_text("modelzoo train tiny\n")
    (folder / "env.json").write_text(json.dumps({"packages": {"torch": "2.13.0"}, "python": "3.11", "processes": 1}))
    data = {split: {"source": f"{split}.jsonl", "fingerprint": split * 4, "report": REPORT} for split in ("train", "validation")}
    (folder / "data.json").write_text(json.dumps(data))
    (folder / "report.json").write_text(json.dumps(MEASURED))
    (folder / "log.txt").write_text("2026-11-30T02:00:00Z INFO run starts\n")
    (folder / "run.lock").write_text("1")
    lines, history = [], []
    for step in range(1, steps + 1):
        facts = {
            "lr": 1e-3 * (1 - step / steps),
            "grad_norm": 1.0,
            "samples": 4 * step,
            "tokens": 100 * step,
            "seconds": 0.1 * step,
        }
        lines.append({"step": step, "epoch": step / 10, "loss": math.exp(-step / 10), **facts})
        if step % 10 == 0:
            metrics = {"accuracy": 0.5 + step / 100, "f1": 0.4, "loss": 0.1 + math.exp(-step / 10)}
            lines.append({"step": step, "epoch": step / 10, "evaluation": metrics, "seconds": 0.1 * step})
            history.append({"step": step, **metrics})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ending is not None:
        result = {
            "stopped": ending,
            "step": steps,
            "total_steps": 40,
            "metric": "accuracy",
            "best_metric": 0.5 + steps / 100,
            "best_step": steps // 10 * 10,
            "majority": 0.5,
            "test": None,
            "history": history,
            "seconds": 4.0,
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_timeline(folder: Path) -> None:
    """Write what a run with tiers records of its first steps."""
    lines: list[dict[str, Any]] = [
        {
            "kind": "plan",
            "step_s": 1.8,
            "stall_s": 0.4,
            "tiers": {
                "host": {"budget_bytes": 9 * 2**20, "peak_bytes": 7 * 2**20},
                "disk": {"budget_bytes": None, "peak_bytes": 2**20},
            },
        }
    ]
    for place in range(12):
        host = {"program": 3 * 2**20, "parameters": 2**20, "activations": (place % 6) * 2**18}
        line = {"kind": "sample", "step": 1 + place // 6, "time_s": place / 10, "event": "forward", "unit": f"layers.{place % 6}"}
        lines.append({**line, "resident": {"host": host, "disk": {"moments": 2**20}}, "traffic": {}, "stall_s": 0.0})
    peak = {"host": {"program": 3 * 2**20, "parameters": 2**20, "activations": 5 * 2**18}}
    traffic = {"disk>host": {"parameters": 123456}, "host>disk": {"moments": 4096}}
    lines.append({"kind": "step", "step": 1, "seconds": 2.1, "stall_s": 0.3, "peak": peak, "peak_time_s": 1.1, "traffic": traffic})
    lines.append({"kind": "of a later version"})
    (folder / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
