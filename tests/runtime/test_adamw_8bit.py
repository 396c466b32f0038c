"""AdamW in eight bits: codes and scales by the published formula, steps near AdamW's, a state that is saved and read exactly."""

from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from torch import nn

from modelzoo.config.parallel import ParallelConfig
from modelzoo.errors import CheckpointError, ConfigError
from modelzoo.runtime import (
    Identity,
    connect,
    find_latest,
    full_tensor,
    load_checkpoint,
    optimizer_tensors,
    prepare,
    save_checkpoint,
)
from modelzoo.runtime.adamw_8bit import AdamW8bit
from modelzoo.runtime.eight_bits import EightBits, dynamic_map, moment_bytes

CPU = torch.device("cpu")
IDENTITY = Identity("config", "data")


def values(is_signed: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(64, 1024, generator=generator) * 10.0 ** torch.randint(-9, 3, (64, 1024), generator=generator)
    return spread if is_signed else spread.abs()


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_map_has_the_published_values(is_signed: bool) -> None:
    """Seven decades of which each has twice the values of the one below, the middles of equal parts of 0.1 to 1."""
    levels = dynamic_map(is_signed)
    assert len(levels) == 256
    assert torch.equal(levels, levels.unique())
    parts = 64 if is_signed else 128
    top = levels[(levels > 0.1) & (levels < 1)]
    expected = 0.1 + (torch.arange(parts) + 0.5) * 0.9 / parts
    torch.testing.assert_close(top, expected, rtol=1e-6, atol=1e-7)
    assert {0.0, 1.0} <= set(levels.tolist())
    assert bool((levels < 0).any()) == is_signed


@pytest.mark.parametrize("is_signed", [True, False])
def test_codes_are_the_nearest_values_of_blocks_scaled_to_one(is_signed: bool) -> None:
    """By the formula of the paper: divide by the largest magnitude of 256 neighbours, take the nearest of the map."""
    some, levels = values(is_signed), dynamic_map(is_signed)
    codes, scales = EightBits(is_signed, CPU).pack(some)
    blocks = some.view(-1, 256)
    assert torch.equal(scales.view(-1), blocks.abs().amax(1))
    scaled = (blocks / blocks.abs().amax(1, keepdim=True)).view(some.shape)
    for row in range(0, 64, 16):
        distance = (scaled[row].unsqueeze(-1) - levels).abs()
        chosen = distance.gather(1, codes[row].long().unsqueeze(-1)).squeeze(-1)
        assert bool((chosen <= distance.amin(1) + 1e-7 * scaled[row].abs()).all())
    unpacked = EightBits(is_signed, CPU).unpack(codes, scales)
    assert torch.equal(unpacked, levels[codes.long()] * scales.repeat_interleave(256, 1))


@pytest.mark.parametrize("is_signed", [True, False])
def test_codes_and_steps_are_those_of_torchao(is_signed: bool) -> None:
    quantised = pytest.importorskip("torchao.optim.quant_utils", reason="pip install --no-deps torchao")
    levels = torch.tensor(quantised.create_dynamic_map(is_signed))
    assert torch.equal(levels, dynamic_map(is_signed))
    scaled, scales = quantised.scale_tensor(values(is_signed), 256)
    theirs = quantised.quantize_8bit_with_qmap(scaled, levels)
    ours, our_scales = EightBits(is_signed, CPU).pack(values(is_signed))
    assert torch.equal(our_scales.view(-1), scales)
    differing = ours != theirs
    assert float(differing.float().mean()) < 1e-4
    middles = (levels[:-1] + levels[1:]) / 2
    nearest = (scaled[differing].unsqueeze(-1) - middles).abs().amin(-1)
    assert bool((nearest <= 1e-6 * scaled[differing].abs()).all())


def test_rows_of_any_width_come_back_within_the_steps_of_the_map() -> None:
    for width in (64, 255, 256, 257, 700):
        some = values(True)[:, :width].contiguous()
        codes, scales = EightBits(True, CPU).pack(some)
        assert (codes.shape, scales.shape) == ((64, width), (64, -(-width // 256)))
        back = EightBits(True, CPU).unpack(codes, scales)
        largest = scales.repeat_interleave(256, 1)[:, :width]
        error = (back - some).abs()
        # half a part of the decade, and what is below the smallest value of the map counts as 0
        assert bool((error <= some.abs() * 0.5 + largest * 1e-6).all())
        assert bool((error <= 0.0075 * largest).all())


def model(seed: int = 0, width: int = 96) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(64, width), nn.Linear(width, 80), nn.GELU(), nn.LayerNorm(80), nn.Linear(80, 7))


def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step % 5)
        ids = torch.randint(0, 64, (32,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(ids), ids % 7)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def test_training_stays_near_adamw_and_takes_a_quarter_of_its_moments() -> None:
    ours, theirs = model(), model()
    small = AdamW8bit(ours.parameters(), lr=3e-3)
    plain = torch.optim.AdamW(theirs.parameters(), lr=3e-3, fused=True)
    first, second = train(ours, small, range(60)), train(theirs, plain, range(60))
    assert first[0] == second[0]
    assert first[-1] < 0.2 * first[0]
    assert abs(first[-1] - second[-1]) < 0.05 * first[0]
    for parameter in ours.parameters():
        kinds = [tensor for kind, tensor in small.state[parameter].items() if kind != "step"]
        assert sum(tensor.nbytes for tensor in kinds) == moment_bytes(parameter.shape)
    table = ours[0].weight
    assert moment_bytes(table.shape) < 0.27 * 8 * table.numel()
    assert small.state[ours[1].bias]["exp_avg"].dtype == torch.float32


def test_what_is_too_small_for_eight_bits_is_torchs_own_step() -> None:
    ours, theirs = (nn.Linear(9, 5, bias=True) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    steps = [AdamW8bit(ours.parameters(), lr=0.1), torch.optim.AdamW(theirs.parameters(), lr=0.1, fused=True)]
    for seed in range(3):
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(seed))
        for each, optimizer in zip((ours, theirs), steps, strict=True):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_run_is_saved_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with connect(device="cpu") as world:
        whole, stopped = model(), model()
        optimizers = [AdamW8bit(each.parameters(), lr=3e-3) for each in (whole, stopped)]
        train(whole, optimizers[0], range(9))
        train(stopped, optimizers[1], range(4))
        save_checkpoint(tmp_path, 4, model=stopped, optimizer=optimizers[1], world=world, state={}, identity=IDENTITY)
        again = model(seed=9)
        fresh = AdamW8bit(again.parameters(), lr=3e-3)
        load_checkpoint(find_latest(tmp_path).path, model=again, optimizer=fresh, world=world)
        train(again, fresh, range(4, 9))
        assert all(torch.equal(*pair) for pair in zip(again.parameters(), whole.parameters(), strict=True))
        found, expected = optimizer_tensors(again, fresh), optimizer_tensors(whole, optimizers[0])
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        plain = torch.optim.AdamW(again.parameters(), lr=3e-3, fused=True)
        with pytest.raises(CheckpointError, match=r"exp_avg_scales/0.weight: expected shape \[64, 96\], found \[64, 1\]"):
            load_checkpoint(find_latest(tmp_path).path, model=again, optimizer=plain, world=world)
        save_checkpoint(tmp_path, 5, model=whole, optimizer=plain, world=world, state={}, identity=IDENTITY)
        train(whole, other := torch.optim.AdamW(whole.parameters(), lr=3e-3, fused=True), range(2))
        save_checkpoint(tmp_path, 6, model=whole, optimizer=other, world=world, state={}, identity=IDENTITY)
        with pytest.raises(CheckpointError, match=r"optimizer/exp_avg/0.weight: expected one of exp_avg_codes, exp_avg_scales, "):
            load_checkpoint(tmp_path / "step-6", model=again, optimizer=fresh, world=world)


class Blocks(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(67, 96)  # rows that do not divide
        self.block = nn.Sequential(nn.Linear(96, 301), nn.GELU(), nn.Linear(301, 67))

    def shard_units(self) -> list[nn.Module]:
        return [self.block]

    def tied_parameters(self) -> dict[str, str]:
        return {}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.block(self.table(ids))


def steps(network: nn.Module, optimizer: AdamW8bit, numbers: range) -> None:
    """Take steps on gradients that are the same on any number of ranks."""
    for number in numbers:
        for place, parameter in enumerate(network.parameters()):
            whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * number + place))
            parameter.grad = like(parameter, whole)
        optimizer.step()


def like(parameter: nn.Parameter, whole: torch.Tensor) -> torch.Tensor:
    if not hasattr(parameter, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def moved(folder: str, zero: int) -> None:
    with connect(device="cpu") as world:
        network = prepare(Blocks(seed=5), world, ParallelConfig(zero=zero))
        optimizer = AdamW8bit(network.parameters(), lr=1e-2)
        load_checkpoint(Path(folder) / "step-3", model=network, optimizer=optimizer, world=world)
        plain = Blocks()
        whole = AdamW8bit(plain.parameters(), lr=1e-2)
        steps(plain, whole, range(3))
        for name, tensor in optimizer_tensors(network, optimizer).items():
            assert torch.equal(full_tensor(tensor), optimizer_tensors(plain, whole)[name]), name
        for each, its in ((network, optimizer), (plain, whole)):
            steps(each, its, range(3, 6))
        for sharded, parameter in zip(network.parameters(), plain.parameters(), strict=True):
            # torch's kernel rounds the last values of a piece in another way
            torch.testing.assert_close(full_tensor(sharded), parameter, rtol=0, atol=1e-6)


@pytest.mark.parametrize("zero", [0, 3])
def test_a_state_is_read_by_ranks_bit_for_bit_and_goes_on(tmp_path: Path, zero: int) -> None:
    with connect(device="cpu") as world:
        network = Blocks()
        optimizer = AdamW8bit(network.parameters(), lr=1e-2)
        steps(network, optimizer, range(3))
        save_checkpoint(tmp_path, 3, model=network, optimizer=optimizer, world=world, state={}, identity=IDENTITY)
    run_distributed(moved, 2, str(tmp_path), zero)


def cut() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with connect(device="cpu"):
        mesh = init_device_mesh("cpu", (2,))
        parameter = nn.Parameter(distribute_tensor(torch.zeros(64, 256), mesh, [Shard(1)]))
        with pytest.raises(ConfigError, match=r"moments in 8 bits: a parameter of \[64, 256\] is cut within its rows"):
            AdamW8bit([parameter])


def test_rows_that_are_cut_are_refused() -> None:
    run_distributed(cut, 2)
