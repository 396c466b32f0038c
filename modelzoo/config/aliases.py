"""Names that people know from Hugging Face: which setting each means here, and advice for those that mean none exactly.

The names that translate one to one stand beside the fields of the schema; here are only those that need more than a new name.
"""

import dataclasses
from typing import Any

from modelzoo.config.keys import list_keys
from modelzoo.config.schema import RunSettings
from modelzoo.config.yaml_file import KeyPath

__all__ = ["ADVICE", "Translation", "short_names", "translate"]

ADVICE: dict[str, str] = {
    "adam_beta1": "use optimizer.betas=[0.9,0.999]",
    "adam_beta2": "use optimizer.betas=[0.9,0.999]",
    "bf16": "use parallel.precision=bfloat16",
    "device": "a GPU is used where torch finds one; remove it",
    "do_eval": "evaluation happens where there is validation data; see evaluation.every",
    "do_train": "`modelzoo train` trains; remove it",
    "fp16": "use parallel.precision=float16",
    "gradient_accumulation_steps": "train.batch_size is the batch of the whole step; train.micro_batch_size bounds one forward",
    "gradient_checkpointing": "use parallel.recompute=blocks",
    "group_by_length": "padding is never computed here; remove it",
    "logging_steps": "use output.log_every_s=SECONDS; every step stands in metrics.jsonl",
    "num_labels": "use data.label_names=[NAME,NAME], or leave the labels to the data",
    "optim": "the optimizer is AdamW; remove it, or use optimizer.moments=8bit for adamw_8bit",
    "output_dir": "use output.folder=FOLDER (of all runs) and output.name=NAME",
    "per_device_eval_batch_size": "use evaluation.batch_tokens=TOKENS of one forward",
    "packing": "padding is never computed, so short rows cost what they hold; use train.batch_tokens=TOKENS",
    "predict_with_generate": "use evaluation.max_new_tokens=TOKENS",
    "resume_from_checkpoint": "use `modelzoo resume RUN`",
    "source_prefix": 'write it into data.columns.source="summarize: {document}"',
}
"""Names without an equal setting -> what to do instead."""

_STRATEGIES = {
    "evaluation_strategy": ("evaluation", "every", "eval_steps"),
    "eval_strategy": ("evaluation", "every", "eval_steps"),
    "save_strategy": ("checkpoint", "every", "save_steps"),
}


@dataclasses.dataclass(frozen=True)
class Translation:
    """What a foreign name means here: a path and value, or advice where it means nothing exactly."""

    path: KeyPath | None = None
    value: Any = None
    advice: str | None = None


def short_names() -> dict[str, list[str]]:
    """Return every alias and every last part of a path -> the dotted paths that it could mean."""
    names: dict[str, list[str]] = {}
    for key in list_keys(RunSettings):
        if "." not in key.path:
            continue
        for name in {*key.aliases, key.path.rpartition(".")[2]}:
            names.setdefault(name, []).append(key.path)
    return names


def translate(name: str, value: Any) -> Translation | None:
    """Return what a name that is no path of the schema means, or None if nobody uses that name.

    Args:
        name: A key without a dot, such as learning_rate.
        value: Its value, which is kept but for the strategies (evaluation_strategy=epoch is evaluation.every=1ep).
    """
    if name in _STRATEGIES:
        return _translate_strategy(name, value)
    if name in ADVICE:
        return Translation(advice=ADVICE[name])
    paths = short_names().get(name, [])
    if len(paths) == 1:
        return Translation(path=tuple(paths[0].split(".")), value=value)
    if paths:
        return Translation(advice=f"could be {' or '.join(paths)}; write one of them")
    return None


def _translate_strategy(name: str, value: Any) -> Translation:
    """Return evaluation.every or checkpoint.every for a strategy of TrainingArguments."""
    section, key, steps_name = _STRATEGIES[name]
    if value == "epoch":
        return Translation(path=(section, key), value="1ep")
    if value in ("no", None, False):
        return Translation(path=(section, key), value=None)
    return Translation(advice=f"use {section}.{key}=STEPS or 0.5ep (Hugging Face: {name} with {steps_name})")
