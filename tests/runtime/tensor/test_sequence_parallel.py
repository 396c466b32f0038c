import torch
from distributed import run_distributed
from torch import Tensor, nn

from modelzoo.config import ParallelConfig
from modelzoo.layers import LayerNorm
from modelzoo.models.gpt2 import GPT2, GPT2Config
from modelzoo.runtime import connect, prepare, prepared

IDS = torch.randint(1, 7, (3, 5), generator=torch.Generator().manual_seed(1))
"""15 tokens, which neither 2 nor 4 ranks divide."""


def build() -> GPT2:
    torch.manual_seed(0)
    sizes = {"vocab_size": 7, "hidden_size": 16, "num_layers": 3, "num_heads": 4, "intermediate_size": 32, "max_positions": 8}
    dropouts = {"hidden_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    return GPT2.from_config(GPT2Config(**sizes, **dropouts, pad_token_id=None), "causal_lm")


def rows_seen(model: nn.Module) -> dict[str, list[int]]:
    """Note how many tokens each norm sees."""
    seen: dict[str, list[int]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LayerNorm):
            module.register_forward_hook(
                lambda _, __, out, name=name: seen.setdefault(name, []).append(out.numel() // out.shape[-1])
            )
    return seen


def train_on_slices() -> None:
    with connect(device="cpu") as world:
        model = prepare(build(), world, ParallelConfig(tensor=world.world_size, recompute="blocks"))
        seen = rows_seen(model)
        model.train()
        loss: Tensor = model(IDS, labels=IDS).loss
        slice_rows = -(-IDS.numel() // world.world_size)
        for layer in (0, 1):
            for block in ("self_attention", "feed_forward"):
                assert seen[f"decoder.layers.{layer}.{block}.norm"] == [slice_rows]
        assert seen["decoder.layers.2.self_attention.norm"] == [IDS.numel()]
        alone = build().train()
        expected = alone(IDS, labels=IDS).loss
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
        loss.backward()
        expected.backward()
        norm, other = model.decoder.layers[0].self_attention.norm, alone.decoder.layers[0].self_attention.norm
        torch.testing.assert_close(norm.weight.grad.full_tensor(), other.weight.grad, rtol=0, atol=1e-6)
        bias, whole = (each.decoder.layers[1].feed_forward.sublayer.down.bias.grad for each in (model, alone))
        torch.testing.assert_close(bias.full_tensor(), whole, rtol=0, atol=1e-6)
        seen.clear()
        with torch.no_grad():
            model.eval()
            model(IDS)
        assert set(map(tuple, seen.values())) == {(IDS.numel(),)}


def test_norms_see_a_slice_of_the_tokens_and_gradients_are_those_of_one_process():
    for world_size in (2, 4):
        run_distributed(train_on_slices, world_size)


def bytes_of_a_step() -> None:
    with connect(device="cpu") as world:
        model = prepare(build(), world, ParallelConfig(tensor=2))
        ids = torch.ones(2, 8, dtype=torch.long)
        model.train()
        model(ids, labels=ids).loss.backward()
        hidden = ids.numel() * 16 * 4
        exchanges = 3 * 2 * 2  # layers, sublayers, forward and backward: a gather and a sum that is cut, or one whole sum
        table = 1  # the sum over rows of the token table
        # slices are put together after the second layer and cut before the first; norms and row biases of sliced layers are summed
        ends = 2
        weights = 2 * (2 * 2 * 16 + 2 * 16) * 4
        loss = 3 * 14 * 4  # three numbers a token
        entered = 14 * 16 * 4  # the gradient of what the head reads
        whole = exchanges * hidden + table * hidden + entered + loss + weights
        assert prepared(model).traffic.sent_bytes["tensor"] == whole + ends * hidden // 2


def test_slices_move_as_many_bytes_as_whole_sums():
    run_distributed(bytes_of_a_step, 2)
