"""What `modelzoo info` says of an adapter's folder: its kind and size, its base, and how it is used."""

import contextlib
import math
from pathlib import Path
from typing import Any

from modelzoo.errors import ModelZooError

__all__ = ["adapter_facts", "adapter_uses", "is_adapter"]

_KINDS = {"LORA": "LoRA", "PROMPT_TUNING": "prompt tuning", "PREFIX_TUNING": "prefix tuning", "IA3": "IA3", "BOFT": "BOFT"}
_CONFIG = "adapter_config.json"
_AUTO_CLASSES = {
    "CAUSAL_LM": "AutoPeftModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoPeftModelForSeq2SeqLM",
    "SEQ_CLS": "AutoPeftModelForSequenceClassification",
    "TOKEN_CLS": "AutoPeftModelForTokenClassification",
    "QUESTION_ANS": "AutoPeftModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoPeftModelForFeatureExtraction",
}


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return (folder / _CONFIG).is_file()


def adapter_facts(folder: Path) -> dict[str, Any]:
    """Return what an adapter is, from its small files and the header of its weights.

    Args:
        folder: With adapter_config.json.

    Raises:
        CheckpointError: A file of it is broken.
    """
    from modelzoo.hub.files import read_json

    values = read_json(folder, _CONFIG, 2**20)
    base = values.get("base_model_name_or_path")
    return {
        "adapter": _kind(values),
        "base": base or "not stated",
        "base_found": bool(base) and Path(str(base)).is_dir(),
        "adapter_for": values.get("task_type"),
        "trained_values": _trained_values(folder),
        "applied_to": _listed(values.get("target_modules")),
        "trained_whole": _listed(values.get("modules_to_save")),
    }


def _kind(values: dict[str, Any]) -> str:
    """Return kind and size: `LoRA, rank 4, alpha 16 (scale 4)`."""
    kind = str(values.get("peft_type", "not stated"))
    parts = [_KINDS.get(kind, kind)]
    rank, alpha = values.get("r"), values.get("lora_alpha")
    if kind == "LORA" and isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float):
        scale = alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)
        parts += [f"rank {rank}", f"alpha {alpha:g} (scale {scale:g})"]
    names = {"use_dora": "DoRA", "use_rslora": "rank-stabilised"}
    parts += [name for key, name in names.items() if values.get(key)]
    if values.get("rank_pattern"):
        parts.append("other ranks in some modules")
    if values.get("num_virtual_tokens"):
        parts.append(f"{values['num_virtual_tokens']} virtual tokens")
    return ", ".join(parts)


def _trained_values(folder: Path) -> int | None:
    """Return how many values the adapter's file holds; None where there is no such file."""
    from modelzoo.hub.safetensors_file import SafetensorsFile

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        return None
    try:
        with contextlib.closing(SafetensorsFile(file, file.name)) as opened:
            return sum(math.prod(entry.shape) for entry in opened.entries.values())
    except ModelZooError:
        return None


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else sorted(map(str, value)) if isinstance(value, list) else []


def adapter_uses(name: str, folder: str, facts: dict[str, Any]) -> list[list[str]]:
    """Return how an adapter is used, as lines of what is wanted and what does it.

    Args:
        name: Of the folder, or of the run that it is of.
        folder: The adapter's own.
        facts: As `adapter_facts` returns them.
    """
    task = facts["adapter_for"]
    verb = "generate" if task in ("CAUSAL_LM", "SEQ_2_SEQ_LM") else "predict"
    rows = [["use it", f"modelzoo {verb} {name} --text TEXT     (loads base and adapter)"]]
    if "tuning" not in facts["adapter"]:
        rows.append(["one plain model", f"modelzoo export {name} DST --to merged --verify"])
    if task in _AUTO_CLASSES:
        rows.append(["in PEFT", f'peft.{_AUTO_CLASSES[task]}.from_pretrained("{folder}")'])
    if facts["base"] == "not stated":
        rows.append(["base", "adapter_config.json names none; without it the adapter is of no use"])
    elif not facts["base_found"]:
        rows.append(["base", f"{facts['base']} is no folder here; it is looked for in the cache and on the hub"])
    return rows
