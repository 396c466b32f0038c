"""Prompt tuning here and in PEFT on transformers' model: equal outputs, losses and gradients, files read both ways."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from harness import Case, made_here, reference, row
from peft import PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file

import modelzoo
from modelzoo.adapter_verification import verify_adapter
from modelzoo.adapters import AdapterConfig, add_adapter, load_adapter, merge_adapter, save_adapter, trained_parts
from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError, ConfigError, DataError
from modelzoo.generation import generate
from modelzoo.models.model import Model
from modelzoo.verification import verification_batch

TOLERANCE = 1e-5
COUNT = 3
SIZES = {"distilbert": {"token_dim": 16, "num_layers": 2, "num_attention_heads": 2}}  # which PEFT does not find
CASES = [
    ("gpt2", "causal_lm"),
    ("llama", "causal_lm"),
    ("opt", "causal_lm"),
    ("qwen2_moe", "causal_lm"),
    ("bert", "classification"),
    ("roberta", "classification"),
    ("modernbert", "token_classification"),
    ("distilbert", "question_answering"),
    ("bert", "base"),
    ("t5", "seq2seq_lm"),
]


def base_folder(family: str, task: str, folder: Path) -> Path:
    reference(
        Case(family, task, {**row(family)["config"], **({"num_labels": 2} if task == "question_answering" else {})}, "plain")
    ).save_pretrained(folder)
    return folder


def theirs_of(folder: Path, model: Model) -> torch.nn.Module:
    return getattr(transformers, converter_for(model.family).architectures[model.task]).from_pretrained(folder).eval()


def with_prompt(model: Model, count: int = COUNT) -> Model:
    add_adapter(model, AdapterConfig(method="prompt", num_virtual_tokens=count))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def shorter(model: Model) -> dict[str, torch.Tensor]:
    """Return a batch that leaves room for the virtual tokens."""
    batch = verification_batch(model)
    ends = {"input_ids", "attention_mask", "token_type_ids"} | ({"labels"} if model.task != "classification" else set())
    cut = model.max_length < 1000 and model.task != "seq2seq_lm"
    return {name: value[:, :-COUNT] if cut and name in ends else value for name, value in batch.items()}


def compare(ours: Model, theirs: torch.nn.Module) -> None:
    batch = shorter(ours)
    # PEFT lengthens labels of language models alone, and drops token types where nobody classifies
    if ours.task not in ("causal_lm", "seq2seq_lm", "classification"):
        batch = {name: value for name, value in batch.items() if name not in ("labels", "start_positions", "end_positions")}
    if ours.task in ("base", "encoder"):
        batch.pop("token_type_ids", None)
    our, their = ours(**batch), theirs(**batch)
    mask = batch["attention_mask"].bool()
    for name in ("logits", "last_hidden_state", "start_logits", "end_logits", "pooler_output"):
        first, second = getattr(our, name), getattr(their, name, None)
        if first is None or second is None:
            continue
        if ours.task not in ("classification", "seq2seq_lm") and name != "pooler_output":
            assert first.shape[:2] == mask.shape
            first, second = first[mask], second[:, COUNT:][mask]
        torch.testing.assert_close(first, second, rtol=0, atol=TOLERANCE * max(1.0, float(second.abs().max())))
    if "labels" in batch:
        torch.testing.assert_close(our.loss, their.loss, rtol=0, atol=TOLERANCE)
        values = [our.loss, their.loss]
    else:
        first = our.start_logits if our.logits is None and our.last_hidden_state is None else our.logits
        first = our.last_hidden_state if first is None else first
        second = next(value for key, value in their.items() if key in ("logits", "last_hidden_state", "start_logits"))
        values = [first[mask].square().mean(), second[:, COUNT:][mask].square().mean()]
    for value in values:
        value.backward()


def trained_of(theirs: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter for name, parameter in theirs.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(("family", "task"), CASES)
def test_what_is_written_here_is_equal_in_peft(family: str, task: str, tmp_path: Path) -> None:
    folder = base_folder(family, task, tmp_path / "base")
    ours = with_prompt(modelzoo.from_pretrained(folder, task=task))
    save_adapter(ours, tmp_path / "adapter")
    assert verify_adapter(tmp_path / "adapter").is_equal
    theirs = PeftModel.from_pretrained(theirs_of(folder, ours), tmp_path / "adapter").eval()
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_("prompt_encoder" in name or "modules_to_save" in name)
    compare(ours, theirs)
    trained = trained_of(theirs)
    found = {name: each.grad for name, each in ours.named_parameters() if each.grad is not None}
    expected = trained.pop("prompt_encoder.default.embedding.weight").grad
    vectors = found.pop(next(name for name in found if name.endswith("adapter.vectors")))
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(vectors, expected, rtol=0, atol=TOLERANCE * max(1.0, float(expected.abs().max())))
    rest = sorted(float(each.grad.norm()) for each in trained.values() if each.grad is not None)
    assert sorted(float(each.norm()) for each in found.values()) == pytest.approx(rest, abs=TOLERANCE)


@pytest.mark.parametrize(("family", "task"), [("gpt2", "classification"), ("llama", "classification"), ("t5", "encoder")])
def test_verify_compares_what_peft_reads_otherwise(family: str, task: str, tmp_path: Path) -> None:
    folder = base_folder(family, task, tmp_path / "base")
    save_adapter(with_prompt(modelzoo.from_pretrained(folder, task=task)), tmp_path / "adapter")
    assert verify_adapter(tmp_path / "adapter").is_equal


@pytest.mark.parametrize(("family", "task"), [("gpt2", "causal_lm"), ("bert", "classification"), ("t5", "seq2seq_lm")])
def test_verify_finds_another_prompt(family: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = base_folder(family, task, tmp_path / "base")
    save_adapter(with_prompt(modelzoo.from_pretrained(folder, task=task)), tmp_path / "adapter")
    load = PeftModel.from_pretrained

    def changed(*words: Any, **options: Any) -> Any:
        model = load(*words, **options)
        next(value for name, value in model.named_parameters() if "prompt_encoder" in name).data[:, 0] += 0.5
        return model

    monkeypatch.setattr(PeftModel, "from_pretrained", changed)
    assert not verify_adapter(tmp_path / "adapter").is_equal


@pytest.mark.parametrize(("family", "task"), CASES)
def test_what_peft_made_is_read_here(family: str, task: str, tmp_path: Path) -> None:
    folder = base_folder(family, task, tmp_path / "base")
    ours = modelzoo.from_pretrained(folder, task=task)
    kinds = {"causal_lm": "CAUSAL_LM", "seq2seq_lm": "SEQ_2_SEQ_LM", "classification": "SEQ_CLS"}
    kinds |= {"token_classification": "TOKEN_CLS", "question_answering": "QUESTION_ANS", "base": "FEATURE_EXTRACTION"}
    settings = PromptTuningConfig(task_type=kinds[task], num_virtual_tokens=COUNT, **SIZES.get(family, {}))
    theirs = get_peft_model(theirs_of(folder, ours), settings).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    load_adapter(ours, tmp_path / "adapter")
    compare(ours, theirs)
    again = (
        modelzoo.from_pretrained(tmp_path / "adapter", task=task) if theirs.peft_config["default"].base_model_name_or_path else ours
    )
    save_adapter(again, tmp_path / "again")
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("adapter", "again"))
    assert torch.equal(first.pop("prompt_embeddings")[:COUNT], second.pop("prompt_embeddings"))
    assert all(torch.equal(first[name], value) for name, value in second.items())


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_written_tokens_are_those_of_peft(family: str, tmp_path: Path) -> None:
    task = "seq2seq_lm" if family == "t5" else "causal_lm"
    folder = base_folder(family, task, tmp_path / "base")
    ours = with_prompt(modelzoo.from_pretrained(folder, task=task))
    save_adapter(ours, tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(theirs_of(folder, ours), tmp_path / "adapter").eval()
    ids = torch.randint(3, row(family)["config"]["vocab_size"], (2, 4), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 6, "min_new_tokens": 6}
    # with a cache, peft 0.21 puts the prompt before every new token of transformers 5.24 once more
    with torch.no_grad():
        found = theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=False, **options)
    assert generate(ours, ids, **options).new_ids == found[:, -6:].tolist()


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_padding_changes_nothing(family: str) -> None:
    model = with_prompt(made_here(Case(family, "seq2seq_lm" if family == "t5" else "causal_lm", row(family)["config"], "plain")))
    ids = torch.randint(3, 40, (1, 5), generator=torch.Generator().manual_seed(0))
    alone = generate(model.eval(), ids, max_new_tokens=5, min_new_tokens=5)
    padded = torch.cat([torch.cat([ids.new_zeros(1, 3), ids], 1), torch.randint(3, 40, (1, 8))])
    mask = torch.ones_like(padded)
    mask[0, :3] = 0
    beside = generate(model, padded, attention_mask=mask, max_new_tokens=5, min_new_tokens=5)
    assert beside.new_ids[0] == alone.new_ids[0]
    beams = generate(model, ids, max_new_tokens=5, min_new_tokens=5, num_beams=2)
    assert len(beams.new_ids[0]) == 5


def test_a_prompt_starts_at_rows_of_the_table_and_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model = made_here(Case("bert", "classification", row("bert")["config"], "plain"))
    add_adapter(model, AdapterConfig(method="prompt", num_virtual_tokens=COUNT))
    assert trained_parts(model) == {"adapter": COUNT * 16, "head": 3 * 16 + 3}
    table = model.embeddings.token
    assert all((table.weight == vector).all(1).any() for vector in table.adapter.vectors)
    batch = shorter(model)
    before = model(**batch).logits
    save_adapter(model, tmp_path / "adapter")
    again = made_here(Case("bert", "classification", row("bert")["config"], "plain"))
    load_adapter(again, tmp_path / "adapter")
    assert torch.equal(again(**batch).logits, before)
    assert torch.equal(copy.deepcopy(again)(**batch).logits, before)
    batch["attention_mask"][1] = 0  # a row without tokens has no virtual ones either
    torch.testing.assert_close(again(**batch).logits[2:], before[2:])
    assert torch.equal(
        again(**batch).logits, again(*[batch.get(name) for name in ("input_ids", "attention_mask", "token_type_ids")]).logits
    )


def test_without_a_mask_a_batch_is_the_same() -> None:
    model = with_prompt(made_here(Case("gpt2", "causal_lm", row("gpt2")["config"], "plain")))
    ids = torch.randint(3, 40, (2, 6))
    first, second = model(ids, labels=ids), model(ids, attention_mask=torch.ones_like(ids), labels=ids)
    torch.testing.assert_close(first.logits, second.logits)
    torch.testing.assert_close(first.loss, second.loss)
    assert first.logits.shape[:2] == ids.shape


@pytest.mark.parametrize(
    ("family", "task", "message"),
    [
        ("vit", "classification", r"ViT takes pixel_values, in which virtual tokens have no place; use lora"),
        ("longformer", "classification", r"Longformer takes global_attention_mask, in which virtual"),
        ("cpm1", "causal_lm", r"CPM1 takes context, spans"),
        ("bert", "masked_lm", r"Bert for masked_lm has no form in PEFT's file; use lora"),
        ("t5", "classification", r"T5 for classification reads the text in its decoder as well"),
    ],
)
def test_what_no_prompt_can_stand_before_is_refused_by_name(family: str, task: str, message: str) -> None:
    model = made_here(Case(family, task, row(family)["config"], "plain"))
    with pytest.raises(ConfigError, match=rf"adapter.method=prompt: {message}"):
        add_adapter(model, AdapterConfig(method="prompt", num_virtual_tokens=COUNT))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    plain = made_here(Case("bert", "classification", row("bert")["config"], "plain"))
    with pytest.raises(ConfigError, match=r"adapter.num_virtual_tokens=4000 leaves no room in \d+ positions; use fewer"):
        add_adapter(plain, AdapterConfig(method="prompt", num_virtual_tokens=4000))
    model = with_prompt(plain)
    with pytest.raises(
        ConfigError, match=r"virtual tokens stand before every text and are no change of a weight, so there is nothing"
    ):
        merge_adapter(model)
    ids = torch.ones(1, 4, dtype=torch.int64)
    with pytest.raises(DataError, match=r"position_ids: the virtual tokens have the first positions"):
        model(ids, position_ids=ids)
    save_adapter(model, tmp_path / "adapter")
    other = made_here(Case("bert", "classification", {**row("bert")["config"], "hidden_size": 32}, "plain"))
    with pytest.raises(CheckpointError, match=r"prompt_embeddings: expected \[3, 32\], found \[3, 16\]"):
        load_adapter(other, tmp_path / "adapter")
    assert all(parameter.requires_grad for parameter in other.parameters())
