"""A model writes the same tokens with an adapter beside its weights, on packed weights, and with the adapter merged into them."""

import copy

import pytest
import torch
from tiny_writers import batch, ours

from modelzoo import generate
from modelzoo.adapters import AdapterConfig, add_adapter, merge_adapter
from modelzoo.generation import onednn, packed_map, prepacked
from modelzoo.models.model import Model

needs_onednn = pytest.mark.skipif(not onednn.is_available(), reason="this torch or machine has no prepacked linear maps")


def adapted(name: str, method: str) -> Model:
    model = copy.deepcopy(ours(name))
    add_adapter(model, AdapterConfig(method=method, r=2))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@needs_onednn
@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
@pytest.mark.parametrize("rows", [1, 3])
def test_tokens_are_the_same_beside_packed_and_merged(name: str, method: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_map, "_SMALLEST", 0)
    ids, mask = batch(rows)
    model = adapted(name, method)
    options = {"max_new_tokens": 14, "return_scores": True, "eos_token_id": ()}
    beside = generate(model, ids, mask, prepack=False, **options)
    packed = generate(model, ids, mask, prepack=True, **options)
    assert torch.equal(beside.sequences, packed.sequences)
    torch.testing.assert_close(packed.scores, beside.scores, rtol=0, atol=1e-5)
    plain = generate(ours(name), ids, mask, prepack=False, **options)
    assert float((plain.scores - beside.scores).abs().max()) > 1e-3
    merge_adapter(model)
    merged = generate(model, ids, mask, prepack=False, **options)
    assert torch.equal(merged.sequences, beside.sequences)


@needs_onednn
def test_weights_below_an_adapter_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_map, "_SMALLEST", 0)
    model = adapted("llama", "lora")
    ids, mask = batch(3)
    with prepacked(model, 3) as packing:
        generate(model, ids, mask, max_new_tokens=3)
    assert packing.num_weights > len(model.shard_units())
