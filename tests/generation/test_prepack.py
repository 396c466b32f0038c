"""Prepacked weights: the same results within 1e-5, the same tokens, everything put back, and a plain fallback."""

import pytest
import torch
from tiny_writers import WRITERS, batch, folder, ours
from torch import nn

from modelzoo import from_pretrained, generate
from modelzoo.generation import onednn, packed_map, prepacked, row_product
from modelzoo.layers import Attention, Embedding, FeedForward, Layout, Linear

needs_onednn = pytest.mark.skipif(not onednn.is_available(), reason="this torch or machine has no prepacked linear maps")
needs_mkl = pytest.mark.skipif(not row_product.is_available(), reason="this torch multiplies without MKL")


@pytest.fixture(autouse=True)
def pack_small_weights(monkeypatch):
    monkeypatch.setattr(packed_map, "_SMALLEST", 0)


def replaced(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if {"forward", "logits", "project"} & vars(module).keys()]


@needs_onednn
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}])
@pytest.mark.parametrize("rows", [1, 3])
def test_tokens_are_those_of_plain_weights(name, options, rows):
    ids, mask = batch(rows)
    plain = generate(ours(name), ids, mask, max_new_tokens=14, prepack=False, **options)
    packed = generate(ours(name), ids, mask, max_new_tokens=14, prepack=True, **options)
    assert torch.equal(plain.sequences, packed.sequences)


@needs_onednn
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rows", [1, 3])
def test_scores_are_within_1e_5(name, rows):
    options = {"max_new_tokens": 14, "return_scores": True, "eos_token_id": ()}
    ids, mask = batch(rows)
    plain = generate(ours(name), ids, mask, prepack=False, **options)
    packed = generate(ours(name), ids, mask, prepack=True, **options)
    torch.testing.assert_close(packed.scores, plain.scores, rtol=0, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 1, 48), (8, 1, 48), (64, 48), (2, 3, 5, 48)])
def test_a_linear_map_is_the_same_within_1e_5(scale, bias, shape):
    torch.manual_seed(0)
    layer = Linear(48, 33, bias=bias, scale=scale)
    if bias:
        nn.init.normal_(layer.bias)
    hidden = torch.randn(shape)
    with torch.no_grad(), prepacked(layer, hidden.numel() // 48) as packing:
        torch.testing.assert_close(layer(hidden), Linear.forward(layer, hidden), rtol=0, atol=1e-5)
        assert packing.num_weights == 1
        assert packing.size_bytes == 48 * 33 * 4


@needs_onednn
def test_a_tied_head_is_packed_and_the_table_is_still_read():
    table = Embedding(50, 16)
    hidden = torch.randn(2, 16)
    with torch.no_grad(), prepacked(table, 2) as packing:
        torch.testing.assert_close(table.logits(hidden), hidden @ table.weight.T, rtol=0, atol=1e-5)
        assert torch.equal(table(torch.tensor([3])), table.weight[3:4])
        assert packing.size_bytes == 50 * 16 * 4


@needs_onednn
def test_copies_take_the_memory_of_the_weights_that_were_used():
    model = from_pretrained(folder("llama"))  # its head is not its table, which is looked up and never packed
    used = [module.weight for module in model.modules() if isinstance(module, Linear)]
    with prepacked(model, 2) as packing:
        assert packing.size_bytes == 0
        generate(model, [[3, 4], [5, 6]], max_new_tokens=3, eos_token_id=())
        assert packing.size_bytes == sum(weight.numel() * 4 for weight in used)
        assert packing.num_weights == len(used), "maps that are packed together are not packed alone as well"


@needs_mkl
def test_for_one_row_only_wide_maps_are_copied():
    model = from_pretrained(folder("llama"))
    wide = [model.head.weight]
    for block in model.decoder.layers:
        attention, feed_forward = block.self_attention.sublayer, block.feed_forward.sublayer
        wide += [feed_forward.gate.weight, feed_forward.up.weight, attention.query.weight, attention.key.weight]
        wide.append(attention.value.weight)  # together 48 outputs of 16 inputs
    with prepacked(model) as packing:
        generate(model, [[3, 4]], max_new_tokens=3, eos_token_id=())
        assert packing.size_bytes == sum(weight.numel() * 4 for weight in wide)
        assert packing.num_weights == 15


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [8, 2])
def test_maps_of_one_input_are_packed_as_one(rows, bias, heads):
    torch.manual_seed(0)
    attention = Attention(16, 8, num_key_value_heads=heads, bias=bias, length_scale=True)
    feed_forward = FeedForward(16, 40, is_gated=True, bias=bias, activation="silu")
    for parameter in [*attention.parameters(), *feed_forward.parameters()]:
        nn.init.normal_(parameter)
    hidden, layout = torch.randn(rows, 1, 16), Layout.dense(rows, 1)
    with torch.no_grad():
        expected = attention(hidden, layout), feed_forward(hidden)
        with prepacked(nn.ModuleList([attention, feed_forward]), rows) as packing:
            found = attention(hidden, layout), feed_forward(hidden)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert packing.num_weights == 7
    assert not replaced(nn.ModuleList([attention, feed_forward]))


@needs_onednn
def test_keys_of_another_input_are_mapped_by_themselves():
    torch.manual_seed(0)
    attention, hidden, context = Attention(16, 4), torch.randn(2, 1, 16), torch.randn(2, 1, 16)
    layout = Layout.dense(2, 1)
    with torch.no_grad():
        expected = attention(hidden, layout, context=context, context_layout=layout)
        with prepacked(attention, 2) as packing:
            found = attention(hidden, layout, context=context, context_layout=layout)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert packing.num_weights == 4


@needs_onednn
def test_maps_that_somebody_watches_are_called():
    feed_forward, seen = FeedForward(16, 40, is_gated=True), []
    feed_forward.up.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad(), prepacked(feed_forward, 2):
        feed_forward(torch.randn(2, 16))
    assert len(seen) == 1


@needs_onednn
def test_everything_is_put_back_also_after_an_error():
    model = from_pretrained(folder("gpt2"))
    with pytest.raises(KeyError), prepacked(model):  # noqa: PT012  # what is inside is what must be undone
        assert len(replaced(model)) > 8
        raise KeyError
    assert not replaced(model)


@needs_onednn
def test_inside_a_block_calls_share_the_packed_weights():
    model = from_pretrained(folder("gpt2"))
    with prepacked(model) as packing:
        generate(model, [[3, 4]], max_new_tokens=3, prepack=True, eos_token_id=())
        count = packing.num_weights
        assert count > 8
        generate(model, [[5]], max_new_tokens=3, prepack=True, eos_token_id=())
        assert packing.num_weights == count
        assert replaced(model), "a call inside the block does not end it"


@needs_onednn
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("changed", ["weight", "bias"])
def test_a_changed_weight_is_computed_plainly(rows, changed):
    layer, hidden = Linear(48, 33), torch.randn(rows, 48)
    with torch.no_grad(), prepacked(layer, rows):
        layer(hidden)
        getattr(layer, changed).add_(2)
        assert torch.equal(layer(hidden), Linear.forward(layer, hidden))
        layer.weight = nn.Parameter(torch.randn(33, 48))
        assert torch.equal(layer(hidden), Linear.forward(layer, hidden))


@needs_onednn
@pytest.mark.parametrize("why", ["gradients", "autocast", "many rows"])
def test_where_it_does_not_apply_the_plain_computation_runs(why):
    layer, hidden = Linear(48, 33), torch.randn(3 if why == "many rows" else 2, 48)
    with (
        torch.set_grad_enabled(why == "gradients"),
        torch.autocast("cpu", enabled=why == "autocast"),
        prepacked(layer, 2) as packing,
    ):
        assert torch.equal(layer(hidden), Linear.forward(layer, hidden))
        assert packing.num_weights == 0


@pytest.mark.parametrize("change", [lambda layer: layer.half(), lambda layer: layer.to("meta")])
def test_other_weights_are_left_alone(change):
    layer = change(Linear(48, 33))
    with prepacked(layer, 2):
        assert not replaced(layer)


def test_small_weights_are_left_alone(monkeypatch):
    monkeypatch.setattr(packed_map, "_SMALLEST", 48 * 33 + 1)
    layer = Linear(48, 33)
    with prepacked(layer):
        assert not replaced(layer)


def test_without_the_operators_nothing_is_replaced_and_tokens_are_equal(monkeypatch):
    ids, mask = batch()
    expected = generate(ours("gpt2"), ids, mask, prepack=False)
    monkeypatch.setattr(onednn, "is_available", lambda: False)
    monkeypatch.setattr(row_product, "is_available", lambda: False)
    with prepacked(ours("gpt2")) as packing:
        assert not replaced(ours("gpt2"))
    assert packing.size_bytes == 0
    assert torch.equal(generate(ours("gpt2"), ids, mask, prepack=True).sequences, expected.sequences)


@pytest.mark.parametrize("broken", ["missing", "wrong"])
def test_operators_that_are_missing_or_wrong_are_not_used(monkeypatch, broken):
    def linear(hidden, packed, bias):
        if broken == "missing":
            raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")
        return torch.zeros(*hidden.shape[:-1], 24)

    onednn.is_available.cache_clear()
    monkeypatch.setattr(onednn, "linear", linear)
    try:
        assert not onednn.is_available()
    finally:
        onednn.is_available.cache_clear()


@needs_onednn
def test_weights_are_packed_when_enough_tokens_are_written(monkeypatch):
    assert onednn.is_available(), "asked before packing is watched, since it packs a weight of its own"
    packed = []
    pack = onednn.pack
    monkeypatch.setattr(onednn, "pack", lambda weight, rows: packed.append(rows) or pack(weight, rows))
    generate(ours("gpt2"), [[3], [4]], max_new_tokens=15, eos_token_id=())
    assert not packed
    generate(ours("gpt2"), [[3], [4]], max_new_tokens=16, eos_token_id=())
    assert set(packed) == {2}
    packed.clear()
    generate(ours("gpt2"), [[3], [4]], max_new_tokens=16, num_beams=3, eos_token_id=())
    assert set(packed) == {6}
    packed.clear()
    generate(ours("gpt2"), [[3]] * 65, max_new_tokens=16, eos_token_id=())
    assert not packed


@needs_mkl
def test_one_row_is_multiplied_without_onednn(monkeypatch):
    expected = generate(ours("llama"), [[3, 4]], max_new_tokens=8, prepack=False)
    monkeypatch.setattr(onednn, "is_available", lambda: False)
    with prepacked(ours("llama")) as packing:
        assert torch.equal(generate(ours("llama"), [[3, 4]], max_new_tokens=8, prepack=True).sequences, expected.sequences)
    assert packing.num_weights > 8


@needs_mkl
def test_one_row_is_packed_for_a_few_tokens(monkeypatch):
    made, product = [], row_product.RowProduct.__call__
    monkeypatch.setattr(row_product.RowProduct, "__call__", lambda self, hidden: made.append(self) or product(self, hidden))
    generate(ours("gpt2"), [[3]], max_new_tokens=3, eos_token_id=())
    assert not made
    generate(ours("gpt2"), [[3]], max_new_tokens=4, eos_token_id=())
    assert made
