import pytest
import torch
from torch import nn

from modelzoo.errors import ConfigError
from modelzoo.training.optimizer import build_optimizer, decay_groups, set_lr


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"embedding": nn.Embedding(5, 4), "norm": nn.LayerNorm(4), "dense": nn.Linear(4, 4)})


def test_norms_and_biases_are_not_decayed():
    assert decay_groups(model()) == (["embedding.weight", "dense.weight"], ["norm.weight", "norm.bias", "dense.bias"])


def test_frozen_parameters_are_in_no_group():
    frozen = model()
    frozen["embedding"].weight.requires_grad_(False)
    assert decay_groups(frozen)[0] == ["dense.weight"]


def test_all_frozen_is_refused():
    frozen = model().requires_grad_(False)
    with pytest.raises(ConfigError, match="ModuleDict: all 5 parameters are frozen"):
        build_optimizer(frozen, lr=0.1)


def test_half_precision_storage_is_refused():
    with pytest.raises(ConfigError, match=r"embedding.weight: trained parameters are stored in float32, found torch.bfloat16"):
        build_optimizer(model().bfloat16(), lr=0.1)


def test_steps_are_those_of_plain_adamw_by_group():
    ours, theirs = model(), model()
    optimizer = build_optimizer(ours, lr=0.5, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-3)
    set_lr(optimizer, 0.1)
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "foreach": False}
    with_decay = torch.optim.AdamW([theirs["embedding"].weight, theirs["dense"].weight], weight_decay=0.1, **options)
    without = torch.optim.AdamW([*theirs["norm"].parameters(), theirs["dense"].bias], weight_decay=0.0, **options)
    for _ in range(3):
        for each in (ours, theirs):
            each.zero_grad()
            x = each["dense"](each["norm"](each["embedding"](torch.arange(5))))
            x.square().sum().backward()
        optimizer.step()
        with_decay.step()
        without.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert all(state["exp_avg"].dtype == torch.float32 for state in optimizer.state.values())
