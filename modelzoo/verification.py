"""Proof that a checkpoint means here what it means in transformers: the same batch through both, outputs and gradients compared."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modelzoo import hub
from modelzoo.converters import Task, converter_for
from modelzoo.errors import ConfigError
from modelzoo.hub.files import ADAPTER_FILES
from modelzoo.models.auto import from_pretrained
from modelzoo.models.model import Model, ModelOutput

__all__ = ["Verification", "compare_outputs", "file_tensors", "verification_batch", "verify"]

_OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output")
_ROWS, _MOST_TOKENS = 4, 48


@dataclass(frozen=True)
class Verification:
    """How far a folder's model is from transformers' own.

    Args:
        folder: What was compared.
        task: The head that both had.
        reference: Name of the class of transformers.
        outputs: For each output that both have, the largest absolute difference over real tokens.
        sizes: For each of them, the largest absolute value of transformers' own.
        gradient: Largest absolute difference of any parameter's gradient.
        worst_parameter: Hugging Face's name of that parameter.
        num_parameters: How many parameters were compared; 0 where outputs alone were.
        missing: Weights of transformers' class that the folder lacks, by its names.
        unexpected: Weights in the folder that transformers' class does not use.
        agreement: Share of places at which the largest logit of both is the same one, 0 to 1; None where there are no logits.
        tolerance: What the differences may reach, for outputs up to 1; for larger ones, this times their size. float32 keeps seven
            digits: where logits reach 17, transformers in float32 is 1.8e-5 away from transformers in float64.
    """

    folder: Path
    task: Task
    reference: str
    outputs: Mapping[str, float]
    sizes: Mapping[str, float]
    gradient: float
    worst_parameter: str
    num_parameters: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    agreement: float | None
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Whether every difference is within the tolerance; one that is not a number never is."""
        allowed = {name: self.tolerance * max(1.0, size) for name, size in self.sizes.items()}
        return all(self.outputs[name] <= allowed[name] for name in self.outputs) and self.gradient <= self.tolerance

    @property
    def is_strict(self) -> bool:
        """Whether transformers found every weight in the folder and used all of them."""
        return not self.missing and not self.unexpected


def verify(
    name_or_path: str | os.PathLike[str],
    *,
    tolerance: float = 1e-5,
    task: Task | None = None,
    family: str | None = None,
    allow_pickle: bool = False,
    local_files_only: bool = False,
) -> Verification:
    """Run transformers and our model on the same batch in float32 and compare outputs and gradients.

    The batch has rows of unequal length, so padding is in play, and both token types. Gradients are those of the loss of drawn
    labels where both have the same, else those of a weighted mean of the outputs.

    Args:
        name_or_path: A folder in Hugging Face's form, or a hub id.
        tolerance: Largest absolute difference that counts as equal, above zero.
        task: The head to compare; None for the one that the checkpoint was saved with.
        family: A `model_type`, for a config.json that has none.
        allow_pickle: Whether a pytorch_model.bin may be read where there is no safetensors file.
        local_files_only: Whether the network is left alone.

    Raises:
        CheckpointError: The folder cannot be loaded.
        ConfigError: The tolerance is not above zero, or the file has no weights for the task's head.
    """
    if not tolerance > 0:
        raise ConfigError(f"tolerance={tolerance} must be above 0")
    folder = hub.resolve(name_or_path, local_files_only=local_files_only, allow_pickle=allow_pickle)
    if (folder / ADAPTER_FILES[0]).is_file():
        raise ConfigError(
            f"{folder}: holds an adapter, and transformers compares whole models; write it with its base as one model "
            "(modelzoo export FOLDER DST --to merged --verify, or modelzoo.models.adapted.write_merged) and verify that"
        )
    ours = from_pretrained(folder, family=family, task=task, dtype="float32", allow_pickle=allow_pickle)
    new = () if ours.load_report is None else ours.load_report.new
    if any(name.startswith("head.") for name in new):
        raise ConfigError(f"{folder} has no weights for task={ours.task} ({new[0]} would be drawn anew); compare without task=")
    theirs, missing, unexpected = _reference(folder, ours)
    batch = verification_batch(ours)
    if "context" in inspect.signature(ours.forward).parameters:
        batch.pop("labels", None)  # in transformers each token of CPM-Ant sees its own label
    mask = batch.get("attention_mask")
    our_output, their_output = ours(**batch), theirs(**batch)
    outputs = compare_outputs(our_output, their_output, mask)
    if new:  # a pooler that the file lacks is drawn anew on both sides
        outputs.pop("pooler_output", None)
    _scalar(our_output, mask, has_pooler=not new).backward()
    _scalar(their_output, mask, has_pooler=not new).backward()
    gradient, worst, count = _compare_gradients(ours, theirs)
    return Verification(
        folder=folder,
        task=ours.task,
        reference=type(theirs).__name__,
        outputs=outputs,
        sizes={name: float(getattr(their_output, name).detach().abs().max()) for name in outputs},
        gradient=gradient,
        worst_parameter=worst,
        num_parameters=count,
        missing=missing,
        unexpected=unexpected,
        agreement=_agreement(our_output, their_output, mask),
        tolerance=tolerance,
    )


def verification_batch(model: Model, *, seed: int = 0) -> dict[str, Tensor]:
    """Return inputs and labels for a model: rows of unequal length, both token types where it has two; images where it takes them.

    Args:
        model: It gives sizes, task and what its forward takes.
        seed: Of the batch's own generator.

    Returns:
        (4, T) int64 each, T at most 48: input_ids, attention_mask, what else the forward takes, and labels where the loss is
        compared. Or pixel_values, (4, channels, height, width) float32.
    """
    generator = torch.Generator().manual_seed(seed)
    values, takes = model.config.values(), inspect.signature(model.forward).parameters
    if "pixel_values" in takes:
        images = torch.randn(_ROWS, values["num_channels"], *values["image_size"], generator=generator)
        labels = torch.randint(0, values["num_labels"], (_ROWS,), generator=generator)
        return {"pixel_values": images} | ({"labels": labels} if model.task == "classification" else {})
    length = min(_MOST_TOKENS, model.max_length)
    lengths = torch.tensor([length, max(1, length - 1), max(1, length // 2), 1 + (length > 2)])
    places = torch.arange(length).expand(_ROWS, -1)
    # transformers' CPM-Ant takes padding on the left alone.
    mask = (places >= length - lengths[:, None] if "context" in takes else places < lengths[:, None]).long()
    ids = torch.randint(0, values["vocab_size"], (_ROWS, length), generator=generator)
    # A pad id among the tokens would shift RoBERTa's positions, and an end would be read by T5's classifier.
    pad_id = values["pad_token_id"] or 0
    reserved = {pad_id, values.get("eos_token_id", pad_id)}
    plain = next(id_ for id_ in range(values["vocab_size"]) if id_ not in reserved)
    for id_ in reserved:
        ids = torch.where(ids == id_, plain, ids)
    if "eos_token_id" in values:
        ids[torch.arange(_ROWS), lengths - 1] = values["eos_token_id"]
    batch = {"input_ids": torch.where(mask.bool(), ids, pad_id), "attention_mask": mask}
    if "token_type_ids" in takes:
        types = (torch.arange(length)[None, :] >= lengths[:, None] // 2).long() * mask
        batch["token_type_ids"] = types if values.get("type_vocab_size", 1) > 1 else torch.zeros_like(types)
    if "global_attention_mask" in takes:  # a third of the tokens see all, the first among them
        batch["global_attention_mask"] = (torch.arange(length)[None, :] % 3 == 0).long() * mask
    if "decoder_input_ids" in takes and model.task == "base":
        batch["decoder_input_ids"] = batch["input_ids"].flip(0)
    if model.task == "multiple_choice":
        choices = {name: tensor.view(_ROWS // 2, 2, length) for name, tensor in batch.items()}
        return choices | {"labels": torch.randint(0, 2, (_ROWS // 2,), generator=generator)}
    if model.task == "classification":
        batch["labels"] = torch.randint(0, values["num_labels"], (_ROWS,), generator=generator)
    elif model.task in ("token_classification", "masked_lm", "causal_lm", "seq2seq_lm"):
        count = values["num_labels"] if model.task == "token_classification" else values["vocab_size"]
        labels = torch.randint(0, count, (_ROWS, length), generator=generator)
        batch["labels"] = torch.where(mask.bool(), labels, -100)
    return batch


def compare_outputs(ours: ModelOutput, theirs: Any, mask: Tensor | None) -> dict[str, float]:
    """Return the largest absolute difference of each output that both have.

    Args:
        ours: Our model's output.
        theirs: transformers' output of the same batch.
        mask: (B, T) int64, 1 at real tokens; where an output has a token dimension, only those are compared. None when all are.
    """
    differences = {}
    for name in _OUTPUTS:
        mine, reference = getattr(ours, name, None), getattr(theirs, name, None)
        if mine is None or reference is None:
            continue
        distance = (mine.detach().float() - reference.detach().float()).abs()
        if mask is not None and distance.shape[:2] == mask.shape and name != "pooler_output":
            distance = distance[mask.bool()]
        differences[name] = float(distance.max())
    return differences


def _agreement(ours: ModelOutput, theirs: Any, mask: Tensor | None) -> float | None:
    """Return the share of real places at which both have their largest logit at the same one."""
    mine, reference = getattr(ours, "logits", None), getattr(theirs, "logits", None)
    if mine is None or reference is None or mine.shape != reference.shape:
        return None
    equal = mine.argmax(-1) == reference.argmax(-1)
    return float((equal[mask.bool()] if mask is not None and equal.shape == mask.shape else equal).float().mean())


def _reference(folder: Path, ours: Model) -> tuple[nn.Module, tuple[str, ...], tuple[str, ...]]:
    """Return transformers' model of the same folder and task, in evaluation mode, and the missing and the unused names."""
    import transformers

    name = converter_for(ours.family).architectures[ours.task]
    if not hasattr(transformers, name):
        raise ConfigError(
            f"transformers has no class {name} to compare {ours.family} with; its reference is in the project's tests"
        )
    options = {"dtype": torch.float32, "local_files_only": True, "output_loading_info": True}
    bars = transformers.utils.logging
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        theirs, info = getattr(transformers, name).from_pretrained(folder, **options)
    finally:
        if had_bars:
            bars.enable_progress_bar()
    theirs.eval()
    if getattr(theirs.config, "pad_token_id", None) is None:  # GPT-2's classifier finds the last token by it; our batch pads with 0
        theirs.config.pad_token_id = 0
    return theirs, tuple(sorted(info["missing_keys"])), tuple(sorted(info["unexpected_keys"]))


def _scalar(output: Any, mask: Tensor | None, *, has_pooler: bool) -> Tensor:
    """Return the loss, or where there is none to compare a weighted mean of the outputs that reaches every parameter.

    transformers' question answering lets padding compete for the answer; ours does not, so their losses differ by intent.
    """
    real = ... if mask is None else mask.bool()
    start: Tensor | None = getattr(output, "start_logits", None)
    if start is not None:
        end: Tensor = output.end_logits
        return (start - 2 * end)[real].square().mean()
    loss: Tensor | None = getattr(output, "loss", None)
    if loss is not None:
        return loss
    logits: Tensor | None = getattr(output, "logits", None)
    if logits is not None:
        return logits[real].square().mean()
    hidden: Tensor = output.last_hidden_state
    total = (hidden * torch.linspace(-1, 1, hidden.shape[-1]))[real].mean()
    pooled: Tensor | None = getattr(output, "pooler_output", None) if has_pooler else None
    return total if pooled is None else total + (pooled * torch.linspace(-1, 1, pooled.shape[-1])).mean()


def _compare_gradients(ours: Model, theirs: nn.Module) -> tuple[float, str, int]:
    """Return the largest difference of gradients, the parameter that has it, and how many were compared.

    Ours are carried through the converter; a gradient that only one side has counts in full.
    """
    converter = converter_for(ours.family)
    tied = bool(ours.config.tie_word_embeddings)
    own = {name: _gradient(parameter) for name, parameter in ours.named_parameters()}
    names = converter.weights(ours.task, tied=tied, values=ours.config.values())
    mapped = names.to_theirs(own)
    for tie in names.tied:
        mapped.pop(names.written(tie.alias), None)  # written beside the first name: transformers' forward does not use it
    worst, worst_name = 0.0, ""
    gradients = {name: _gradient(parameter) for name, parameter in theirs.named_parameters(remove_duplicate=False)}
    reference = file_tensors(theirs, gradients)
    seconds = {names.written(tie.alias): names.written(tie.target) for tie in names.tied if tie.must_equal}
    mapped |= {alias: mapped[target] for alias, target in seconds.items() if alias in reference and target in mapped}
    for name, expected in reference.items():
        distance = float((mapped.get(name, torch.zeros_like(expected)) - expected).abs().max())
        if not distance <= worst:
            worst, worst_name = distance, name
    absent = [name for name in mapped if name not in reference and bool(mapped[name].any())]
    if absent:
        worst, worst_name = float("inf"), absent[0]
    return worst, worst_name, len(reference)


def file_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a model of transformers by the names, and in the shapes, that its files have.

    Since version 5 the two may differ: experts are stacked in memory and apart in files, and ViT's layers have other names.

    Args:
        model: Of transformers.
        tensors: Its parameters, or their gradients, by its own names.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    loaded_with = getattr(model, "_weight_conversions", None)
    if not get_model_conversion_mapping(model, add_legacy=False):
        return dict(tensors)
    model._weight_conversions = None  # type: ignore[assignment]  # else it would add the prefixes of the file that it came from
    try:
        found: dict[str, Tensor] = revert_weight_conversion(model, dict(tensors))
    finally:
        model._weight_conversions = loaded_with  # type: ignore[assignment]  # as it was
    return found


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient, zeros where nothing reached it."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
