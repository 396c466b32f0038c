"""Modules that are not ours: Hugging Face's models and plain ones, prepared at every ZeRO level, equal to one process."""

import copy
import re

import pytest
import torch
import transformers
from distributed import run_distributed
from tiny_model import adamw
from torch import Tensor, nn

from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import ConfigError
from modelzoo.runtime import accumulating, clip_grad_norm, connect, find_units, full_tensor, prepare, prepared, reshard

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES = {"vocab_size": 7, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def theirs(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    if name == "bert":
        config = transformers.BertConfig(**SIZES, **QUIET, max_position_embeddings=8)
        return transformers.BertForMaskedLM(config).train()
    if name == "gpt2":
        quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(vocab_size=7, n_embd=16, n_layer=2, n_head=4, n_positions=8, **quiet)
        return transformers.GPT2LMHeadModel(config).train()
    if name == "t5":
        config = transformers.T5Config(
            vocab_size=7, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0
        )
        return transformers.T5ForConditionalGeneration(config).train()
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=8)
    return transformers.LlamaForCausalLM(config).train()


UNITS = {"bert": "BertLayer", "gpt2": "GPT2Block", "t5": "T5Block", "llama": "LlamaDecoderLayer"}
TIED = {"bert", "gpt2", "t5"}


def rows(step: int, rank: int, size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, 7, (6, 5), generator=generator)
    mask = torch.ones_like(ids)
    mask[::2, 3:] = 0
    return {"input_ids": ids[rank::size], "attention_mask": mask[rank::size]}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, number: int, rank: int = 0, size: int = 1) -> float:
    batch = rows(number, rank, size)
    more = {} if name == "bert" else {"use_cache": False}  # a block that appends to a cache cannot be computed twice
    more |= {"decoder_input_ids": batch["input_ids"].flip(1)} if name == "t5" else {}
    scores = model(**batch, **more).logits
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["input_ids"].flatten(), reduction="sum") / 30
    loss.backward()
    clip_grad_norm(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def assert_equal(model: nn.Module, alone: nn.Module) -> None:
    expected = dict(alone.named_parameters())
    assert [name for name, _ in model.named_parameters()] == list(expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(full_tensor(parameter.detach()), expected[name].detach(), rtol=0, atol=1e-6, msg=name)
    buffers = dict(alone.named_buffers())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def train_theirs(names: list[str]) -> None:
    with connect(device="cpu") as world:
        for name in names:
            alone = theirs(name)
            optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3, eps=1e-5)
            expected = [step(alone, optimizer, name, number) for number in range(4)]
            for zero, recompute in zip(range(4), ("none", "blocks", "selective", "every 2"), strict=True):
                model = prepare(theirs(name), world, ParallelConfig(zero=zero, recompute=recompute))
                units = prepared(model).units
                assert {re.sub("^FSDP", "", type(unit).__name__) for unit in units} == {UNITS[name]}
                assert len(units) == (4 if name == "t5" else 2)
                if name in TIED:
                    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5)
                found = [step(model, optimizer, name, number, world.rank, world.world_size) for number in range(4)]
                totals = world.sum(found)
                assert totals == pytest.approx(expected, abs=1e-6), (name, zero)
                assert_equal(model, alone)


def test_hugging_face_models_train_as_on_one_process():
    run_distributed(train_theirs, 2, list(UNITS))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [3, 4])
def test_hugging_face_models_train_as_on_one_process_on_more_ranks(world_size):
    run_distributed(train_theirs, world_size, list(UNITS))


class Loose(nn.Module):
    """Parameters of its own, repeated blocks in a Sequential, a buffer that is updated, a branch by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.first = nn.Linear(3, 5)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(3)))
        self.last = nn.Linear(5, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor, *, sign: float = 1.0) -> dict[str, Tensor]:
        self.calls += 1
        return {"scores": self.last(self.blocks(self.first(inputs * self.scale))) * sign}


def loose(seed: int = 0) -> Loose:
    torch.manual_seed(seed)
    return Loose()


def loose_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, rank: int = 0, size: int = 1) -> None:
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(number))[rank::size]
    model(inputs, sign=-1.0)["scores"].sub(inputs.sum(1, keepdim=True)).square().sum().div(12).backward()
    clip_grad_norm(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()


def freeze(model: nn.Module, names: str, is_frozen: bool = True) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith(names):
            parameter.requires_grad_(not is_frozen)


def frozen_at_any_time() -> None:
    with connect(device="cpu") as world:
        for zero in range(4):
            freeze_and_free(world, zero)


def freeze_and_free(world, zero: int) -> None:
    alone, model = loose(), loose()
    freeze(alone, "first"), freeze(model, "first")
    prepare(model, world, ParallelConfig(zero=zero))
    optimizers = [(each, adamw(each)) for each in (alone, model)]
    shares = [(0, 1), (world.rank, world.world_size)]

    def steps(numbers: range) -> None:
        for (each, optimizer), share in zip(optimizers, shares, strict=True):
            for number in numbers:
                loose_step(each, optimizer, number, *share)
        assert_equal(model, alone)

    steps(range(2))
    assert torch.equal(alone.first.weight, loose().first.weight), "frozen before"
    for each, _ in optimizers:
        freeze(each, "first", is_frozen=False)
        freeze(each, "blocks.1")
        freeze(each, "scale")
    moments = {id(p): s["exp_avg"].clone() for p, s in optimizers[1][1].state.items()}
    steps(range(2, 4))
    for each, _ in optimizers:  # a forward without a backward leaves parameters whole; freezing works then too
        with torch.no_grad():
            each(torch.ones(1, 3))
        freeze(each, "last")
        freeze(each, "blocks.0")
        freeze(each, "scale", is_frozen=False)
    steps(range(4, 6))
    reshard(model)
    frozen = model.blocks[1][0].weight
    state = optimizers[1][1].state[frozen]
    assert torch.equal(state["exp_avg"].to_local(), moments[id(frozen)].to_local()), "moments of a frozen parameter are kept"
    for each, _ in optimizers:
        freeze(each, "", is_frozen=False)
    steps(range(6, 8))


def test_parameters_are_frozen_and_freed_at_any_time():
    run_distributed(frozen_at_any_time, 2)


class Branches(nn.Module):
    """Maps of one size, of which a row takes one, and one that nobody takes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maps = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("even", "odd", "never")})
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor, *, is_even: bool) -> Tensor:
        return self.last(self.maps["even" if is_even else "odd"](inputs)).square().sum()


def different_branches() -> None:
    inputs = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0))
    with connect(device="cpu") as world:
        alone = Branches()
        optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-2, weight_decay=0.5, eps=1e-5)
        for step_inputs in inputs[:3]:
            (alone(step_inputs, is_even=True) + alone(step_inputs + 1, is_even=False)).backward()
            clip_grad_norm(alone.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        alone(inputs[3], is_even=True).backward()
        alone(inputs[3], is_even=True).backward()
        optimizer.step()
        for zero, is_cut in ((0, True), (1, False), (2, True), (3, False)):
            model = prepare(Branches(), world, ParallelConfig(zero=zero))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5, eps=1e-5)
            for step_inputs in inputs[:3]:
                for number in range(1 + is_cut):  # cut in two, a rank's branch changes from one micro-batch to the next
                    is_even = (world.rank + number) % 2 == 0
                    accumulating(model, is_last=number == is_cut)
                    (model(step_inputs + (not is_even), is_even=is_even) / (1 + is_cut)).backward()
                clip_grad_norm(model.parameters(), 0.5)
                assert model.maps["never"].weight.grad is None
                assert model.maps["odd"].weight.grad is not None
                optimizer.step()
                optimizer.zero_grad()
            model(inputs[3], is_even=True).backward()
            clip_grad_norm(model.parameters(), None)
            assert model.maps["odd"].weight.grad is None
            optimizer.step()
            assert_equal(model, alone)


def test_ranks_may_take_different_branches():
    run_distributed(different_branches, 2)


def units_by_hand() -> None:
    alone = loose()
    optimizer = adamw(alone)
    for number in range(4):
        loose_step(alone, optimizer, number)
    with connect(device="cpu") as world:
        for chosen in (lambda model: [model.first, *model.blocks[:2]], lambda model: [], lambda model: [model.blocks]):
            model = loose()
            units = chosen(model)
            prepare(model, world, ParallelConfig(zero=3, recompute="blocks"), units=units)
            assert prepared(model).units == tuple(units)
            optimizer = adamw(model)
            for number in range(4):
                loose_step(model, optimizer, number, world.rank, world.world_size)
            assert_equal(model, alone)


def test_units_can_be_given():
    run_distributed(units_by_hand, 2)


def test_units_are_repeated_blocks_the_outermost_first():
    own = loose()
    assert find_units(own) == list(own.blocks)
    assert find_units(nn.Linear(2, 2)) == []
    model = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])
    assert find_units(model) == list(model)
    once = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)])
    assert find_units(once) == []
    assert [type(unit).__name__ for unit in find_units(theirs("gpt2"))] == ["GPT2Block", "GPT2Block"]


def refuse_tensor() -> None:
    with connect(device="cpu") as world:
        model = theirs("bert")
        before = dict(model.named_parameters())
        with pytest.raises(ConfigError, match=r"parallel.tensor=2: no layer of BertForMaskedLM declares how it is cut"):
            prepare(model, world, ParallelConfig(tensor=2))
        assert world.tensor_size == 1
        assert all(parameter is before[name] for name, parameter in model.named_parameters())
        prepare(model, world, ParallelConfig(zero=2))
        with pytest.raises(ConfigError, match=r"BertForMaskedLM was prepared before; build it again"):
            prepare(model, world, ParallelConfig(zero=2))


def test_a_model_without_declarations_is_not_cut_over_a_tensor_axis():
    run_distributed(refuse_tensor, 2)


def test_a_prepared_model_is_still_of_its_class():
    model = loose()
    copied = copy.deepcopy(model)
    with connect(device="cpu") as world:
        assert prepare(model, world) is model
    assert isinstance(model, Loose)
    assert list(model.state_dict()) == list(copied.state_dict())
