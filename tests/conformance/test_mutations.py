"""Faults planted in a converter, one at a time, must show: every field that is read wrongly, every tensor that is put wrongly.

For each family a tiny model of transformers gives the expected logits. Then each argument of our config is changed, and each tensor
is replaced by a plausible wrong one (transposed when square, else its rows rolled by one), as a wrong table would do it. A fault
that leaves the logits equal would pass unseen into a user's model. What cannot show in an evaluation is listed with the reason.
"""

import dataclasses
from typing import Any

import pytest
import torch
from harness import Case, has_reference, made_here, main_task, reference, row
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from modelzoo.converters import converter_for
from modelzoo.errors import ModelZooError
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.models.model import Model
from modelzoo.verification import compare_outputs, file_tensors, verification_batch

TOLERANCE = 1e-5
UNSEEN = {
    "initializer_range": "only for fresh weights",
    "pad_token_id": "only where padding is, which is not compared, and for fresh weights",
    "num_labels": "no classifier in this task",
    "label_names": "names",
    "max_positions": "only a limit, where positions are not a table",
    "decoder_start_token_id": "only without decoder_input_ids",
    "eos_token_id": "only for T5's classifier and for writing",
    "classifier_dropout": "training",
    "summary_dropout": "training",
    "hidden_dropout": "training",
    "embedding_dropout": "training",
    "attention_dropout": "training",
    "dropout": "training",
}


def wrong(name: str, value: Any) -> Any:
    """Return a plausible wrong value of a config argument, or None when there is none."""
    if isinstance(value, bool):
        return not value
    if name == "activation":
        return {"gelu": "gelu_new", "gelu_new": "gelu"}.get(value, "gelu")
    if name == "norm_eps":
        return 1e-5 if value < 1e-6 else 1e-12
    if isinstance(value, int) and value > 1:
        return value // 2 if name.startswith("num_") else value - 1
    if isinstance(value, float):
        return value * 2
    return None


def misplaced(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape with its values in wrong places."""
    if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
        return tensor.t().contiguous()
    return tensor.roll(1, 0 if tensor.shape[0] > 1 else -1)


def build(case: Case, values: dict[str, Any], tensors: dict[str, Tensor]) -> Model:
    cls = model_class(case.family)
    model = cls(cls.config_class(**values), case.task).eval()
    model.load_state_dict(tensors)
    return model


def is_seen(case: Case, values: dict[str, Any], tensors: dict[str, Tensor], theirs: Any, batch: dict[str, Tensor]) -> bool:
    """Whether the model is refused, or its outputs differ."""
    try:
        with torch.no_grad():
            outputs = compare_outputs(build(case, values, tensors)(**batch), theirs, batch.get("attention_mask"))
    except (ModelZooError, RuntimeError, ValueError):
        return True
    return not all(difference <= TOLERANCE * max(1.0, float(theirs[name].abs().max())) for name, difference in outputs.items())


@dataclasses.dataclass(frozen=True)
class Subject:
    """A family's tiny model, unchanged, with transformers' outputs to compare with."""

    case: Case
    values: dict[str, Any]
    tensors: dict[str, Tensor]
    batch: dict[str, Tensor]
    theirs: Any

    def sees(self, **changed: Any) -> bool:
        """Whether other config arguments are refused, or change the outputs."""
        return is_seen(self.case, {**self.values, **changed}, self.tensors, self.theirs, self.batch)

    def sees_misplaced(self, name: str) -> bool:
        """Whether wrong values of a tensor change the outputs."""
        tensors = {**self.tensors, name: misplaced(self.tensors[name])}
        return is_seen(self.case, self.values, tensors, self.theirs, self.batch)


def inputs(model: Model) -> dict[str, Tensor]:
    """Return a batch without labels."""
    batch = verification_batch(model)
    batch.pop("labels", None)
    if model.task == "seq2seq_lm":
        batch["decoder_input_ids"] = batch["input_ids"].flip(0)
    return batch


def own_subject(case: Case, model: Model) -> Subject:
    """Return a subject whose expected outputs are our own."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = inputs(model)
    with torch.no_grad():
        outputs = CausalLMOutput(logits=model(**batch).logits)
    return Subject(case, model.config.values(), tensors, batch, outputs)


def subject(family: str, *, matrix_std: float, norm_weight: float = 1.0) -> Subject:
    """Return a family's model with matrices drawn from N(0, matrix_std^2)."""
    data = row(family)
    case = Case(family, main_task(family), {**data["config"], **data.get("mutate", {})}, "mutated")
    model = reference(case) if has_reference(family) else made_here(case)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=matrix_std * (5 if case.config.get("length_scale", data.get("length_scale")) else 1))
            elif name.endswith("weight"):
                parameter.mul_(norm_weight)
            else:
                parameter.mul_(matrix_std / 0.2)
    if isinstance(model, Model):  # transformers has no such family: the unchanged converter is what a fault is compared with
        return own_subject(case, model)
    converter, cls = converter_for(family), model_class(family)
    values = converter.read_config(model.config.to_dict(), case.task)
    if converter.is_tied_by_tensors:
        state = model.state_dict()
        values["tie_word_embeddings"] = torch.equal(state["lm_head.weight"], state["shared.weight"])
    values = cls.config_class(**values).values()
    mapping = converter.weights(case.task, tied=values.get("tie_word_embeddings", True), values=values)
    tensors = mapping.to_ours(file_tensors(model, model.state_dict()))
    batch = inputs(build(case, values, tensors))
    with torch.no_grad():
        theirs = model(**batch)
    found = Subject(case, values, tensors, batch, theirs)
    assert not found.sees(), "the unchanged converter must agree"
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_in_the_converter_shows(family: str) -> None:
    plain = subject(family, matrix_std=0.4)
    quiet = subject(family, matrix_std=1e-3, norm_weight=0.01)  # low variance everywhere, so that a wrong epsilon shows
    survivors = []
    planted = 0
    for field in dataclasses.fields(model_class(family).config_class):
        changed = wrong(field.name, plain.values.get(field.name))
        if field.name in ("source", *UNSEEN) or changed is None:
            continue
        planted += 1
        model = quiet if field.name == "norm_eps" else plain
        if not model.sees(**{field.name: changed}):
            survivors.append(field.name)
    for name in plain.tensors:
        if name.endswith("attention.sublayer.key.bias"):
            continue  # it adds the same to every score of a query, and softmax removes it
        planted += 1
        if not plain.sees_misplaced(name):
            survivors.append(name)
    explained = row(family).get("survivors", {})
    unexplained = [name for name in survivors if name not in explained]
    assert not unexplained, f"{len(unexplained)} of {planted} faults were not seen"
    assert set(explained) <= set(survivors), "a fault that is explained as unseen is seen"
