"""Choosing between texts: equal to transformers' ...ForMultipleChoice, on rows with fewer choices too, and in its files."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

import modelzoo
from modelzoo.errors import DataError

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "modernbert", "longformer")
SEPARATOR, PAD = 2, 1


def reference(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": 40, "max_position_embeddings": 40, "pad_token_id": PAD, "type_vocab_size": 2}
    if family == "distilbert":
        sizes |= {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    if family == "longformer":
        sizes |= {"attention_window": 8, "sep_token_id": SEPARATOR}
    if family == "modernbert":
        sizes |= {"cls_token_id": 0, "sep_token_id": SEPARATOR, "bos_token_id": 0, "eos_token_id": SEPARATOR}
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModelForMultipleChoice.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # wide enough that every part shows
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if is_norm else 0.0))
    return model


def batch() -> dict[str, Tensor]:
    """Two rows of three choices, each with three separators, as pairs of RoBERTa's have; the last choice is shorter."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 40, (2, 3, 14), generator=generator)
    ids[..., 0] = 0
    ids[..., [4, 5, 13]] = SEPARATOR
    mask = torch.ones_like(ids)
    ids[1, 2, 10], ids[1, 2, 11:], mask[1, 2, 11:] = SEPARATOR, PAD, 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([2, 0])}


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_logits_and_gradients_equal_transformers_and_files_go_both_ways(family: str, tmp_path: Path) -> None:
    theirs = reference(family)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = modelzoo.from_pretrained(tmp_path / "theirs", dtype="float32")
    assert ours.task == "multiple_choice"
    found, wanted = ours(**batch()), theirs(**batch())
    assert torch.allclose(found.logits, wanted.logits, atol=1e-5)
    assert torch.allclose(found.loss, wanted.loss, atol=1e-5)
    found.loss.backward()
    wanted.loss.backward()
    table = next(module for name, module in theirs.named_modules() if isinstance(module, torch.nn.Embedding))
    assert torch.allclose(ours.get_parameter("embeddings.token.weight").grad, table.weight.grad, atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.allclose(again.eval()(**batch()).logits, wanted.logits, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_choice_that_is_not_there_takes_no_part(family: str, tmp_path: Path) -> None:
    reference(family).save_pretrained(tmp_path)
    model = modelzoo.from_pretrained(tmp_path, dtype="float32")
    full = batch()
    two = {name: tensor[:1, :2] for name, tensor in full.items() if name != "labels"}
    alone = model(**two, labels=torch.tensor([1]))
    full["attention_mask"][0, 2] = 0
    given = {name: tensor[:1] for name, tensor in full.items() if name != "labels"}
    beside = model(**given, labels=torch.tensor([1]))
    assert torch.allclose(beside.loss, alone.loss, atol=1e-6)
    assert torch.allclose(beside.logits[:, :2], alone.logits, atol=1e-6)
    assert float(beside.logits[0, 2]) == torch.finfo(torch.float32).min
    with pytest.raises(DataError, match="labels: row 0: choice 2 has no token"):
        model(**given, labels=torch.tensor([2]))
    with pytest.raises(DataError, match="labels: row 0: 3 is not in 0 to 2"):
        model(**given, labels=torch.tensor([3]))


def test_a_head_of_an_encoder_without_one_is_new(tmp_path: Path) -> None:
    reference("bert").base_model.save_pretrained(tmp_path)
    model = modelzoo.from_pretrained(tmp_path, task="multiple_choice", dtype="float32")
    assert model.load_report is not None
    assert set(model.load_report.new) == {"head.output.weight", "head.output.bias"}
    assert model.get_parameter("head.output.weight").shape == (1, 16)
