"""Sharded models take keyword arguments as they are given, and keep loose parameters in step."""

import torch
from distributed import run_distributed
from torch import Tensor

from modelzoo.models.cpm1 import CPM1, CPM1Config
from modelzoo.models.model import Model
from modelzoo.models.vit import ViT, ViTConfig
from modelzoo.runtime import connect, full_tensor, prepare

IDS = torch.randint(1, 40, (2, 8), generator=torch.Generator().manual_seed(0))
CONTEXT = torch.tensor([[1, 1, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
SPANS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0] * 8])


def cpm1() -> Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "head_size": 4, "intermediate_size": 24}
    return CPM1(CPM1Config(vocab_size=40, **sizes), "causal_lm").eval()


def vit() -> Model:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 24,
        "image_size": (8, 8),
        "patch_size": (4, 4),
    }
    return ViT(ViTConfig(**sizes, num_labels=3), "classification").eval()


def gradients(model: Model, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    return {name: full_tensor(each.grad) for name, each in model.named_parameters() if each.grad is not None}


def keywords_survive() -> None:
    marks = {"context": CONTEXT, "spans": SPANS, "labels": IDS}
    alone, plain = cpm1(), cpm1()
    assert not torch.equal(alone(IDS, context=CONTEXT, spans=SPANS).logits, plain(IDS).logits)
    expected = gradients(alone, alone(IDS, **marks).loss)
    with connect(device="cpu") as world:
        model = prepare(cpm1(), world)
        torch.testing.assert_close(
            model(IDS, context=CONTEXT, spans=SPANS).logits, alone(IDS, context=CONTEXT, spans=SPANS).logits, rtol=0, atol=1e-6
        )
        found = gradients(model, model(IDS, **marks).loss)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():  # the sum over ranks that read the same
            torch.testing.assert_close(gradient / world.world_size, expected[name], rtol=1e-4, atol=1e-6)


def test_keyword_arguments_behind_an_omitted_one_reach_a_sharded_model():
    """BMTrain's wrapper kept positional arguments alone, so that a mask given by name was dropped without a word."""
    run_distributed(keywords_survive, 2)


def loose_parameters_are_averaged() -> None:
    pixels, labels = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 1])
    alone = vit()
    expected = gradients(alone, alone(pixels, labels=labels).loss)
    with connect(device="cpu") as world:
        model = prepare(vit(), world)
        own = slice(2 * world.rank, 2 * world.rank + 2)
        found = gradients(model, model(pixels[own], labels=labels[own]).loss)
        assert {"embeddings.class_token", "embeddings.position"} <= found.keys()
        for name in expected:  # the sum of the ranks' means, of half of the rows each
            torch.testing.assert_close(found[name] / world.world_size, expected[name], rtol=1e-4, atol=1e-6)


def test_parameters_outside_of_every_block_are_reduced_too():
    """BMTrain never synchronised plain parameters, such as ViT's class token, and said nothing."""
    run_distributed(loose_parameters_are_averaged, 2)
