"""Parts sent from rank to rank are what torch's own collectives give."""

import pytest
import torch
import torch.distributed as dist
from distributed import run_distributed

from modelzoo.runtime import connect
from modelzoo.runtime.exchange.part_exchange import all_gather, reduce_scatter


def compare(size: int) -> None:
    with connect(60, device="cpu") as world:
        group = dist.group.WORLD
        for rows in (0, 1, 5, 4097):
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                # whole numbers, so that the order of the addition plays no part
                whole = torch.arange(size * rows * 3).view(-1, 3).mul(world.rank + 1).remainder(17).to(dtype)
                part, expected = whole.new_full((rows, 3), -1), whole.new_full((rows, 3), -1)
                reduce_scatter(part, whole, group)
                if rows:
                    dist.reduce_scatter_single(expected, whole.clone(), group=group)
                assert torch.equal(part, expected), (rows, dtype)
                gathered, expected = torch.empty_like(whole), torch.empty_like(whole)
                all_gather(gathered, part, group)
                if rows:
                    dist.all_gather_single(expected, part, group=group)
                assert torch.equal(gathered, expected), (rows, dtype)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_parts_are_those_of_torch(size: int) -> None:
    run_distributed(compare, size, size)


def in_place_and_later() -> None:
    with connect(60, device="cpu") as world:
        group, size = dist.group.WORLD, world.world_size
        whole = torch.zeros(size * 4)
        mine = whole[world.rank * 4 : world.rank * 4 + 4]
        mine.fill_(world.rank)
        first = all_gather(whole, mine, group, async_op=True)
        other = torch.empty(size)
        second = all_gather(other, torch.tensor([10.0 + world.rank]), group, async_op=True)
        summed = torch.full((size,), 1.0 + world.rank)
        reduce_scatter(summed[world.rank : world.rank + 1], summed, group)
        assert second is not None
        assert first is not None
        second.wait()
        first.wait()
        assert torch.equal(whole, torch.arange(size).repeat_interleave(4).float())
        assert torch.equal(other, 10.0 + torch.arange(size))
        assert summed[world.rank] == size * (size + 1) / 2
        largest = torch.empty(1)
        reduce_scatter(largest, torch.full((size,), float(world.rank)), group, op=dist.ReduceOp.MAX)
        assert largest.item() == size - 1


def test_several_under_way_and_parts_in_place() -> None:
    run_distributed(in_place_and_later, 3)
