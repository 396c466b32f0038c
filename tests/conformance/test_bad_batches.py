"""Every family's forward: padding on either side changes nothing; what is out of range is refused by row, position and value."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Case, cases, main_task, row, saved
from torch import Tensor

import modelzoo
from modelzoo.errors import DataError
from modelzoo.models.auto import FAMILIES
from modelzoo.models.model import Model, ModelOutput
from modelzoo.verification import verification_batch

TEXTS = [family for family in FAMILIES if "vocab_size" in row(family)["config"]]
TASKS = [case for case in cases() if case.name == "plain" and case.family in TEXTS]
LABELLED = [case for case in TASKS if case.task not in ("base", "encoder", "question_answering")]
LIMITED = 1_000_000  # a longest sequence above this is none
LENGTHS = (7, 4, 1)


def model_of(case: Case, folder: Path) -> Model:
    return modelzoo.from_pretrained(saved(case, folder), task=case.task)


def plain(family: str) -> Case:
    return Case(family, main_task(family), row(family)["config"], "plain")


def run(model: Model, ids: Tensor, **options: Any) -> ModelOutput:
    """Run a model on ids, with a decoder's own ids where it needs them."""
    if "decoder_input_ids" in inspect.signature(model.forward).parameters and model.task in ("base", "seq2seq_lm"):
        options["decoder_input_ids"] = torch.tensor([[3, 4, 5]]).expand(len(ids), -1)
    if "global_attention_mask" in inspect.signature(model.forward).parameters and model.task in (
        "question_answering",
        "multiple_choice",
    ):
        options["global_attention_mask"] = torch.zeros_like(ids)  # else it is found by separators, which these texts lack
    output: ModelOutput = model(ids, **options)
    return output


def ids_for(model: Model, length: int) -> Tensor:
    """Return (1, length) ids that are no special ones, with an end where T5's classifier reads one."""
    ids = torch.arange(7, 7 + length).unsqueeze(0)
    if model.task == "classification" and hasattr(model.config, "decoder_start_token_id"):
        ids[0, -1] = model.config.eos_token_id  # type: ignore[attr-defined]  # T5's
    return ids


def outputs(output: ModelOutput) -> dict[str, Tensor]:
    names = ("logits", "last_hidden_state", "pooler_output", "start_logits", "end_logits")
    return {name: getattr(output, name) for name in names if getattr(output, name) is not None}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", TASKS, ids=str)
def test_padding_on_either_side_changes_nothing(case: Case, side: str, tmp_path: Path) -> None:
    model = model_of(case, tmp_path)
    pad = model.config.pad_token_id or 0
    width = max(LENGTHS)
    rows, mask = torch.full((len(LENGTHS), width), pad), torch.zeros(len(LENGTHS), width, dtype=torch.long)
    places = [slice(width - length, width) if side == "left" else slice(0, length) for length in LENGTHS]
    for number, (length, place) in enumerate(zip(LENGTHS, places, strict=True)):
        rows[number, place], mask[number, place] = ids_for(model, length)[0], 1
    options = {}
    if side == "left" and row(case.family).get("positions") == "columns":  # as in transformers: a token's place in its row
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    if side == "left" and case.task in ("classification", "question_answering") and main_task(case.family) == "seq2seq_lm":
        pytest.skip("as in transformers: the decoder reads the input shifted by one, its padding too")
    batch = outputs(run(model, rows, attention_mask=mask, **options))
    for number, (length, place) in enumerate(zip(LENGTHS, places, strict=True)):
        for name, alone in outputs(run(model, ids_for(model, length))).items():
            found = batch[name][number]
            if found.shape != alone[0].shape:
                found = found[place]
            assert found.isfinite().all()
            assert torch.allclose(found, alone[0], atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize("case", TASKS, ids=str)
def test_a_row_of_padding_alone_leaves_the_others_as_they_are(case: Case, tmp_path: Path) -> None:
    model = model_of(case, tmp_path)
    ids = ids_for(model, 5).repeat(3, 1)
    mask = torch.tensor([[1] * 5, [0] * 5, [1] * 5])
    alone = outputs(run(model, ids[:1]))
    for name, found in outputs(run(model, ids, attention_mask=mask)).items():
        assert torch.allclose(found[[0, 2]], alone[name].expand_as(found[[0, 2]]), atol=1e-5, rtol=1e-5), name
        assert not found.isnan().any(), name


@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("beyond", [-1, 0, 10**9], ids=["negative", "vocab_size", "huge"])
def test_an_id_out_of_range_is_named_with_row_position_and_vocabulary(family: str, beyond: int, tmp_path: Path) -> None:
    model = model_of(plain(family), tmp_path)
    vocab_size = model.config.vocab_size
    value = beyond if beyond else vocab_size
    ids = ids_for(model, 5).repeat(2, 1)
    ids[1, 3] = value
    with pytest.raises(DataError, match=rf"input_ids: row 1, position 3: id {value} is not in 0 to \d+ \(.*vocab_size"):
        run(model, ids)


@pytest.mark.parametrize("case", LABELLED, ids=str)
@pytest.mark.parametrize("is_training", [True, False])
def test_a_negative_label_that_is_not_the_ignored_one_is_refused(case: Case, is_training: bool, tmp_path: Path) -> None:
    model = model_of(case, tmp_path).train(is_training)
    batch = verification_batch(model)
    labels = batch["labels"]
    batch["labels"] = torch.where(torch.arange(labels.numel()).reshape(labels.shape) == 0, -1, labels)
    with pytest.raises(DataError, match=r"labels: row 0.*-1 is not in 0 to"):
        model(**batch)


@pytest.mark.parametrize("family", TEXTS)
def test_a_text_longer_than_the_model_is_refused_with_both_numbers(family: str, tmp_path: Path) -> None:
    model = model_of(plain(family), tmp_path)
    if model.max_length > LIMITED:
        pytest.skip("this family has no longest text")
    ids = torch.full((1, model.max_length + 1), 7)
    with pytest.raises(DataError, match=rf"{model.max_length + 1} tokens, limit {model.max_length} "):
        run(model, ids)
    run(model, ids[:, :-1])


@pytest.mark.parametrize("family", TEXTS)
def test_a_token_type_out_of_range_is_refused(family: str, tmp_path: Path) -> None:
    model = model_of(plain(family), tmp_path)
    if "token_type_ids" not in inspect.signature(model.forward).parameters:
        pytest.skip("this family has no token types")
    ids = ids_for(model, 5)
    types = torch.zeros_like(ids)
    types[0, 2] = model.config.type_vocab_size  # type: ignore[attr-defined]  # of models with segments
    with pytest.raises(DataError, match=r"token_type_ids: row 0, position 2: id \d+ is not in 0 to \d+ \(.*type_vocab_size"):
        run(model, ids, token_type_ids=types)
