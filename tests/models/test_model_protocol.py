"""What the runtime and the user see of a model: units, ties, first values, dropout, its printed forms."""

import copy
import pickle

import pytest
import torch
from reference_models import FAMILIES, TASKS, inputs
from torch import nn

from modelzoo.layers import Embedding, LayerNorm, Linear
from modelzoo.models.auto import model_class
from modelzoo.models.model import Model

TINY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_layers": 3,
    "num_heads": 4,
    "intermediate_size": 24,
    "max_positions": 18,
    "num_labels": 3,
}


def build(family="bert", task="base", **options) -> Model:
    kind = model_class(family)
    torch.manual_seed(0)
    types = {"type_vocab_size": 2} if family == "bert" else {}
    return kind.from_config(kind.config_class(**TINY | types | options), task)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_values_have_the_configs_spread(family, task):
    model = build(family, task, hidden_size=64, intermediate_size=64, vocab_size=400, initializer_range=0.05)
    for name, module in model.named_modules():
        if isinstance(module, Embedding):
            rows = [row for row in range(module.num_embeddings) if row != module.padding_idx]
            assert abs(module.weight[rows].std().item() - 0.05) < 0.01, name
            assert module.padding_idx is None or not module.weight[module.padding_idx].any()
        if isinstance(module, Linear):
            assert abs(module.weight.std().item() - 0.05) < 0.01, name
            assert module.bias is None or not module.bias.any()
        if isinstance(module, LayerNorm):
            assert torch.equal(module.weight, torch.ones(64))
            assert not module.bias.any()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_only_the_named_layers_get_new_values():
    model = build(task="classification")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    model.init_weights(only=("head.output.weight", "head.output.bias", "pooler.dense.weight", "pooler.dense.bias"))
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {"head.output.weight", "pooler.dense.weight"}  # biases are zeros before and after
    model.init_weights(only=())
    assert torch.equal(model.head.output.weight, dict(model.named_parameters())["head.output.weight"])


def test_a_layer_of_which_one_parameter_is_named_keeps_the_others():
    model = build(task="classification")
    nn.init.constant_(model.head.output.weight, 7.0)
    nn.init.constant_(model.head.output.bias, float("nan"))
    model.init_weights(only=("head.output.bias",))
    assert torch.equal(model.head.output.bias, torch.zeros(3))
    assert torch.equal(model.head.output.weight, torch.full((3, 16), 7.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_built_without_memory_is_filled_later(family):
    kind = model_class(family)
    with torch.device("meta"):
        model = kind.from_config(kind.config_class(**TINY), "masked_lm")
    assert all(each.is_meta for each in model.parameters())
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    torch.manual_seed(0)
    expected = kind.from_config(kind.config_class(**TINY), "masked_lm")
    for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_shard_units_are_the_blocks_in_forward_order(family, task):
    model, order = build(family, task), []
    units = model.shard_units()
    assert len(units) == 3
    for unit in units:
        unit.register_forward_hook(lambda module, *_: order.append(module))
    model(inputs(family, None)["input_ids"])
    assert all(mine is other for mine, other in zip(order, units, strict=True))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("is_tied", [True, False])
def test_ties_name_a_parameter_and_the_module_that_shares_it(task, is_tied):
    model = build(task=task, tie_word_embeddings=is_tied)
    ties = model.tied_parameters()
    assert ties == ([("embeddings.token.weight", "head")] if is_tied and task == "masked_lm" else [])
    for parameter, user in ties:
        assert parameter in dict(model.named_parameters())
        assert user in dict(model.named_modules())


def test_a_tied_table_gets_both_gradients():
    model = build(task="masked_lm").eval()
    model(torch.tensor([[3, 4]])).logits[..., 9].sum().backward()
    assert model.embeddings.token.weight.grad[[3, 4, 9]].abs().sum(1).gt(0).all()


@pytest.mark.parametrize("name", ["hidden_dropout", "attention_dropout", "classifier_dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_dropout_acts_in_training_alone_and_follows_the_seed(family, name):
    nothing = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0}
    model, batch = build(family, "classification", **nothing | {name: 0.5}), inputs(family, [[1] * 7, [1] * 3 + [0] * 4])
    plain = model.eval()(**batch).logits
    assert torch.equal(plain, model(**batch).logits)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(model.train()(**batch).logits)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_without_dropout_equals_evaluation(family):
    model = build(family, "classification", hidden_dropout=0.0, attention_dropout=0.0)
    batch = inputs(family, [[1] * 7, [1] * 3 + [0] * 4])
    assert torch.equal(model.train()(**batch).logits, model.eval()(**batch).logits)


@pytest.mark.parametrize("task", TASKS)
def test_half_precision_runs_and_stays_near_float32(task):
    model, batch = build(task=task).eval(), inputs("bert", [[1] * 7, [0] * 3 + [1] * 4])
    expected, found = model(**batch), model.to(torch.bfloat16)(**batch)
    for name in ("logits", "last_hidden_state", "pooler_output"):
        if getattr(expected, name) is not None:
            assert getattr(found, name).dtype == torch.bfloat16
            torch.testing.assert_close(getattr(found, name).float(), getattr(expected, name), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_can_be_copied_and_sent_to_another_process(family):
    model, batch = build(family, "classification", activation="linear").eval(), inputs(family, None)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_summary_counts_every_parameter_once(family, task):
    model = build(family, task)
    count = sum(parameter.numel() for parameter in model.parameters())
    summary = model.summary()
    assert summary.parameters == summary.trainable == sum(part.parameters for part in summary.parts) == count
    assert summary.size_bytes == sum(part.size_bytes for part in summary.parts) == 4 * count
    blocks = next(part for part in summary.parts if part.is_unit)
    assert blocks.name == "encoder.layers.0-2"
    assert blocks.parameters == sum(parameter.numel() for unit in model.shard_units() for parameter in unit.parameters())


def test_the_summary_separates_blocks_that_differ():
    model = build()
    model.encoder.layers[1].to(torch.bfloat16)
    assert [part.name for part in model.summary().parts if part.is_unit] == [f"encoder.layers.{i}" for i in range(3)]
    assert "bfloat16" in str(model.summary())
    model.encoder.layers[2].to(torch.bfloat16)
    assert [part.name for part in model.summary().parts if part.is_unit] == ["encoder.layers.0", "encoder.layers.1-2"]


def test_the_summary_says_how_much_is_trained():
    model = build(task="classification")
    model.embeddings.requires_grad_(False)
    summary = model.summary()
    frozen = sum(parameter.numel() for parameter in model.embeddings.parameters())
    assert summary.trainable == summary.parameters - frozen
    assert f"{100 * summary.trainable / summary.parameters:.1f} % trained" in str(summary)


def test_the_summary_is_a_table_of_short_lines():
    lines = str(build(task="classification").summary()).splitlines()
    assert lines[0] == "Bert for classification"
    assert lines[1].split() == ["part", "module", "parameters", "size", "dtype"]
    assert [line.split()[0] for line in lines[3:7]] == ["embeddings", "encoder.layers.0-2", "pooler", "head"]
    assert max(map(len, lines)) <= 100
    large = model_class("xlm-roberta").config_class(hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
    with torch.device("meta"):
        shown = str(model_class("xlm-roberta").from_config(large, "masked_lm").summary())
    assert "559,890,432" in shown or "560," in shown
    assert "2.09 GiB" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_print_is_readable(family, task):
    shown = repr(build(family, task))
    assert "(0-2): 3 x TransformerBlock(" in shown
    assert "heads=4, head_size=4, dropout=0.1" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert len(shown.splitlines()) < 60
    if task == "masked_lm":
        assert "vocab_size=40, activation=gelu, tied" in shown
