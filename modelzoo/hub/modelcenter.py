"""From a folder of ModelCenter's (config.json and pytorch_model.pt) to a plain Hugging Face folder; no model is built."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelzoo.converters import Group, Match, Task, converter_for
from modelzoo.converters.modelcenter import FAMILIES, KEPT
from modelzoo.converters.modelcenter_config import KNOWN_KEYS, our_values, read_values
from modelzoo.errors import CheckpointError, ConfigError, SaveError, closest
from modelzoo.hub.checkpoint import open_pickle
from modelzoo.hub.files import CONFIG_FILE, COPIED_FILES, check_inside, read_config, shown
from modelzoo.hub.modelcenter_source import FILE, SEQ2SEQ, TABLE, Source, matched, opened
from modelzoo.hub.publish import published, require_space, require_target
from modelzoo.hub.safetensors_file import header_of, write_safetensors
from modelzoo.hub.shards import Spec, divided, index_text, json_text, shard_bytes, spec_bytes, write_file

__all__ = ["ConversionReport", "convert_modelcenter"]

_SCALES = (1, 100)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        folder: Where the model is now.
        family: Hugging Face's model_type.
        task: What it was saved for.
        num_parameters: Values in the written file.
        dtype: Of the file's tensors; the widest where there are several.
        left_out: (ModelCenter's key, reason) of what is not in the written file.
        notes: What a user should know: what could not be undone exactly, and what the file did not say.
    """

    folder: Path
    family: str
    task: Task
    num_parameters: int
    dtype: torch.dtype
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def convert_modelcenter(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    family: str | None,
    *,
    allow_pickle: bool = False,
    dtype: str = "auto",
    residual_scale: int | None = None,
    max_shard_size: str | int = "50GB",
) -> ConversionReport:
    """Write a ModelCenter checkpoint as a Hugging Face folder that both libraries load strictly.

    Names, shapes and the config are compared first, tensor by tensor; the folder appears complete or not at all.

    Args:
        source: The folder with config.json and pytorch_model.pt.
        target: The new folder.
        family: bert, roberta, longformer, gpt2, gptj, llama, opt, t5 (v1.0, v1.1, FLAN), mt5 or vit. The files do not say it: BERT
            and RoBERTa have the same names and the same keys.
        allow_pickle: Must be on, because the file is a pickle; torch's restricted reader reads it.
        dtype: "auto" (the file's), "float32", "float16" or "bfloat16".
        residual_scale: For T5 alone: 100 for t5, t5-v1_1 and mt5, 1 for flan-t5. The files do not say it, unless the config has
            `"scale": true`.
        max_shard_size: Bytes of tensors in one file, or a size such as "5GB".

    Raises:
        ConfigError: The family is not known or not said, or the config is not of it.
        CheckpointError: The tensors are not those of the config: missing, too many, other shapes, not finite.
        SaveError: The folder is in use, or the disk fails.
    """
    folder, destination = Path(source).expanduser(), Path(target).expanduser()
    family = _known(family)
    if dtype != "auto" and dtype not in _DTYPES:
        raise ConfigError(f"dtype={dtype!r}: expected auto, {', '.join(_DTYPES)}")
    limit = shard_bytes(max_shard_size)
    require_target(destination, overwrite=False)
    config = read_config(folder)
    scale = _residual_scale(family, read_values(family, config), residual_scale)
    with open_pickle(folder, FILE, allow_pickle=allow_pickle) as checkpoint:
        found = opened(checkpoint, family, config, scale)
        fit = matched(found, allow_float64=dtype != "auto")
        spec, groups = _spec(found, fit, _DTYPES.get(dtype))
        widest = next(iter(kinds)) if len(kinds := {kind for kind, _ in spec.values()}) == 1 else torch.float32
        texts = _texts(found, widest)
        files = divided(spec, limit)
        texts |= index_text(files)
        _write(destination, files, texts, _values(found, spec, files, groups))
    return ConversionReport(
        folder=destination,
        family=family,
        task=found.task,
        num_parameters=sum(torch.Size(shape).numel() for _, shape in spec.values()),
        dtype=widest,
        left_out=tuple(fit.ignored),
        notes=tuple(_notes(found, widest)),
    )


def _known(family: str | None) -> str:
    if family in FAMILIES:
        return family
    if family in KEPT:
        raise ConfigError(
            f"family={family!r}: expected a family that transformers has; a model of this one keeps ModelCenter's names: "
            f"modelzoo.from_pretrained(folder, family={family!r}, task={KEPT[family]!r}, allow_pickle=True).save_pretrained(target)"
        )
    near = closest(family, (*FAMILIES, *KEPT)) if family else []
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join((*FAMILIES, *KEPT))
    raise ConfigError(
        f"family={family!r}: expected one of {known}; {hint}ModelCenter's files do not say of which family they are, "
        "so say it with family= (--family)"
    )


def _residual_scale(family: str, values: dict[str, Any], given: int | None) -> int:
    """Return what the residual was divided by."""
    if family not in SEQ2SEQ:
        if given is not None:
            raise ConfigError(f"residual_scale={given}: expected none for {family}; only T5's residual was divided")
        return 1
    if given is not None and given not in _SCALES:
        raise ConfigError(f"residual_scale={given}: expected 100 (t5, t5-v1_1, mt5) or 1 (flan-t5)")
    if given is None and not values["scale"]:
        raise ConfigError(
            f"residual_scale: expected 100 or 1 for {family}, found nothing. ModelCenter divided the residual of t5, t5-v1_1 and "
            "mt5 by 100 and that of flan-t5 by 1, and the files do not say which: pass residual_scale= (--residual-scale)"
        )
    if given == 1 and values["scale"]:
        raise ConfigError('residual_scale=1: expected 100, because config.json says "scale": true')
    return given or 100


def _spec(found: Source, fit: Match, dtype: torch.dtype | None) -> tuple[Spec, dict[str, tuple[Group, tuple[str, ...], int]]]:
    """Return dtype and shape of each written tensor, and where it comes from."""
    spec: Spec = {}
    groups: dict[str, tuple[Group, tuple[str, ...], int]] = {}
    for group, keys in fit.reads:
        shapes = group.rule.op.shapes([found.info(key).shape for key in keys])
        for index, (name, shape) in enumerate(zip(group.ours, shapes, strict=True)):
            spec[name] = (dtype or found.info(keys[0]).dtype, shape)
            groups[name] = (group, keys, index)
    return spec, groups


def _values(
    found: Source, spec: Spec, files: dict[str, Spec], groups: dict[str, tuple[Group, tuple[str, ...], int]]
) -> Iterator[Tensor]:
    """Yield the tensors in the order in which the files hold them.

    Raises:
        CheckpointError: A value is not finite in the dtype that is written.
    """
    for file in files.values():
        for name in header_of(file)[1]:
            group, keys, index = groups[name]
            read = [found.read(key) for key in keys]
            # Wide arithmetic: a scaled value is rounded once, to what is written.
            wide = [value.float() if value.dtype in (torch.float16, torch.bfloat16) else value for value in read]
            value = group.rule.op.apply(wide)[index].to(spec[name][0])
            if not value.isfinite().all():
                source = "its own" if not all(part.isfinite().all() for part in read) else f"too large for {spec[name][0]}"
                raise CheckpointError(
                    f"{found.checkpoint.folder / FILE}: {found.keys[keys[0]]}: expected finite values in {name}, found NaN or "
                    f"infinity ({source}). Values that are too large fit with dtype='float32' (--dtype float32)"
                )
            yield value


def _texts(found: Source, dtype: torch.dtype) -> dict[str, bytes]:
    """Return config.json and the tokenizer's files; the config is one that our own family reads.

    Raises:
        ConfigError: The family does not read it.
    """
    converter = converter_for(found.family)
    own = our_values(found.family, found.values, is_tied=found.layout.is_tied)
    defaults = converter.read_config({}, found.task)
    values = {name: own.get(name, default) for name, default in defaults.items()}
    config = converter.write_config(values, None, found.task, dtype)
    if found.family == "mt5":
        config["tie_word_embeddings"] = False
    converter.read_config(config, found.task)
    texts = {CONFIG_FILE: json_text(config)}
    folder = found.checkpoint.folder
    for name in COPIED_FILES:
        # RoBERTa's vocab.txt of ModelCenter's is a list that no tokenizer of Hugging Face's reads.
        if (folder / name).exists() and (name != "vocab.txt" or found.family in ("bert", "longformer")):
            texts[name] = check_inside(folder, name).read_bytes()
    return texts


def _write(target: Path, files: dict[str, Spec], texts: dict[str, bytes], values: Iterator[Tensor]) -> None:
    try:
        require_space(target, sum(map(spec_bytes, files.values())) + sum(map(len, texts.values())))
        with published(target) as temporary:
            for name, spec in files.items():
                write_safetensors(temporary / name, spec, (next(values) for _ in spec))
            for name, text in texts.items():
                write_file(temporary / name, text)
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(f"{target}: could not be written ({error.strerror or error}); nothing is left of it") from error


def _notes(found: Source, dtype: torch.dtype) -> list[str]:
    """Return what a user should know of this conversion."""
    layout, values = found.layout, found.values
    notes = []
    if layout.padding_rows:
        notes.append(
            f"row {values['vocab_size']} of the token table, zeros, is dropped: the vocabulary has {values['vocab_size']} tokens"
        )
    if layout.residual_scale != 1:
        stored = str(found.info(TABLE).dtype).removeprefix("torch.")
        notes.append(
            f"multiplied back by {layout.residual_scale} and {layout.residual_scale**0.5:g}: what {stored} lost when ModelCenter "
            "divided cannot be undone (one rounding of each value, more where it became very small)"
        )
    if found.family in SEQ2SEQ and layout.is_tied and not values["scale"]:
        scale = f"{layout.residual_scale:g} / sqrt({values['hidden_size']}) times smaller"
        factor = scale if values["tied"] else f"sqrt({values['hidden_size']}) times larger"
        notes.append(f"logits are those of Hugging Face's T5; ModelCenter's own, without \"scale\": true, are {factor}")
    if found.family in SEQ2SEQ and dtype == torch.float16:
        notes.append("T5 overflows in float16; write it with dtype='bfloat16' or 'float32' (--dtype) to run it")
    if found.family in ("gpt2", "gptj") and values["activation"] == "gelu":
        notes.append(
            'activation_function is "gelu", as ModelCenter computed; the published weights are for "gelu_new": set that in '
            "config.json if these are they, not trained further"
        )
    if found.family == "llama":
        notes.append(
            "max_position_embeddings is 2048: ModelCenter's config does not have it; set it in config.json for a model trained on "
            "longer texts (LLaMA-2: 4096)"
        )
    if found.family == "vit":
        notes.append(
            "layer_norm_eps is 1e-05, as ModelCenter computed; the published weights are for 1e-12: set that in config.json if "
            "these are they, not trained further"
        )
    unknown = sorted(set(found.config) - KNOWN_KEYS)
    if unknown:
        notes.append(f"keys of config.json that are not read: {', '.join(shown(key, 40) for key in unknown[:8])}")
    return notes
