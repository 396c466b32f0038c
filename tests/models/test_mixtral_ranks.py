"""A mixture of experts on two ranks: loaded, trained and saved as on one."""

from pathlib import Path

import torch
import transformers
from distributed import run_distributed
from safetensors.torch import load_file

import modelzoo
from modelzoo.hub import load_weights, save_pretrained

CONFIG = {
    "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 12, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 4, "num_experts": 5,
    "num_experts_per_tok": 2, "mlp_only_layers": [1], "max_position_embeddings": 16, "output_router_logits": True,
}  # fmt: skip


def batch(rank: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 40, (2, 9), generator=torch.Generator().manual_seed(rank))
    return {"input_ids": ids, "labels": ids}


def gradients_of_both_ranks(folder: Path) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    model = modelzoo.from_pretrained(folder).train()
    losses = [model(**batch(rank)).loss for rank in range(2)]
    torch.stack(losses).sum().backward()  # the runtime adds the gradients of ranks
    return losses, {name: parameter.grad for name, parameter in model.named_parameters()}


def train_on_two_ranks(folder: Path, out: Path) -> None:
    from modelzoo.runtime import connect, full_tensor, prepare

    losses, expected = gradients_of_both_ranks(folder)
    model = modelzoo.from_pretrained(folder).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with connect(device="cpu") as world:
        prepare(model, world)
        load_weights(model, folder, model.facts())
        loss = model(**batch(world.rank)).loss
        torch.testing.assert_close(loss, losses[world.rank], rtol=0, atol=1e-6)
        loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(full_tensor(parameter.grad), expected[name], rtol=0, atol=1e-6, msg=name)
        save_pretrained(model, out, model.facts())


def test_experts_on_two_ranks_are_those_of_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**CONFIG)).save_pretrained(tmp_path / "theirs")
    run_distributed(train_on_two_ranks, 2, tmp_path / "theirs", tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
