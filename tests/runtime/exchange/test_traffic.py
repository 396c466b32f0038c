"""What a step sends is what the formulas of ZeRO say, counted where it is sent, and nothing is sent beside it."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed import run_distributed
from grid import build, count, global_batch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modelzoo.config.parallel import ParallelConfig
from modelzoo.runtime import Traffic, accumulating, connect, prepare, prepared
from modelzoo.runtime.exchange.part_exchange import GATHER_TAG, REDUCE_TAG

KINDS = {GATHER_TAG: "gather", REDUCE_TAG: "reduce"}


class Wire(TorchDispatchMode):
    """Notes the bytes that this rank sends at the door of the process group; of a sum, those of a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "c10d":
            name = op.name().split("::")[1].rstrip("_")
            boxed = next(each for each in args if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()))
            size = torch.distributed.ProcessGroup.unbox(boxed).size()
            if name == "send":
                kind = KINDS[args[3]]
                self.sent[kind] += sum(each.nbytes for each in args[0])
                self.calls[kind] += 1
            elif name == "allreduce":
                self.sent[name] += sum(2 * each.nbytes * (size - 1) // size for each in args[0])
                self.calls[name] += size > 1
            else:
                assert name == "recv", name
        return op(*args, **(kwargs or {}))


def padded(parameters: list[nn.Parameter], parts: int) -> int:
    """Return the bytes of parameters whose rows are padded to a multiple of the parts, as `fully_shard` does, in float32."""
    return sum(-(-len(each) // parts) * parts * each[0].numel() * 4 for each in parameters)


def groups(model: nn.Module, parts: int) -> tuple[int, int]:
    """Return the bytes of the blocks and of what is sharded with the model itself."""
    inside = [parameter for block in model.shard_units() for parameter in block.parameters()]
    known = {id(parameter) for parameter in inside}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return padded(inside, parts), padded(rest, parts)


def run_step(model: nn.Module, name: str, world: Any, accumulation: int) -> Traffic:
    traffic = prepared(model).traffic
    traffic.clear()
    batch = global_batch(0)
    for number in range(accumulation):
        accumulating(model, is_last=number == accumulation - 1)
        (model(**batch).loss / count(batch["labels"], name)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()
    return traffic


def formulas(name: str, world_size: int, data_replicate: int) -> None:
    with connect(device="cpu") as world:
        shard = world_size // data_replicate
        for zero in range(4):
            if zero == 0 and data_replicate > 1:
                continue
            parts = 1 if zero == 0 else shard
            plain = build(name, tied=True)
            blocks, rest = groups(plain, parts)
            everything = blocks + rest
            config = ParallelConfig(zero=zero, data_replicate=1 if zero == 0 else data_replicate)
            model = prepare(build(name, tied=True), world, config)
            for accumulation in (1, 3):
                run_step(model, name, world, accumulation)  # the second step is like all that follow
                with Wire() as wire:
                    traffic = run_step(model, name, world, accumulation)
                gathers = {0: 0, 1: everything, 2: everything, 3: accumulation * (2 * blocks + rest)}[zero]
                reduces = {0: 0, 1: everything, 2: accumulation * everything, 3: accumulation * everything}[zero]
                copies = world_size if zero == 0 else data_replicate
                expected = Counter(
                    gather=gathers * (parts - 1) // parts,
                    reduce=reduces * (parts - 1) // parts,
                    replicate=2 * everything // parts * (copies - 1) // copies,
                )
                where = f"{name} zero={zero} accumulation={accumulation}"
                assert +Counter(traffic.sent_bytes) == +expected, where
                sent = wire.sent
                assert (sent["gather"], sent["reduce"]) == (expected["gather"], expected["reduce"]), where
                assert sent["allreduce"] == expected["replicate"], where
                assert all(traffic.seconds[kind] > 0 for kind in traffic.calls), where


@pytest.mark.parametrize(("name", "world_size", "data_replicate"), [("bert", 2, 1), ("cpm1", 3, 1), ("gpt2", 4, 2)])
def test_bytes_of_a_step_are_those_of_the_formulas(name: str, world_size: int, data_replicate: int) -> None:
    run_distributed(formulas, world_size, name, world_size, data_replicate)


def late_sums(world_size: int, zero: int, data_replicate: int) -> None:
    with connect(device="cpu") as world:
        model = prepare(build("bert", tied=True), world, ParallelConfig(zero=zero, data_replicate=data_replicate))
        run_step(model, "bert", world, 1)
        summed = dist.all_reduce

        def late(*arguments: Any, **options: Any) -> Any:
            time.sleep(0.05)
            return summed(*arguments, **options)

        dist.all_reduce = late
        try:
            traffic = run_step(model, "bert", world, 1)
        finally:
            dist.all_reduce = summed
        assert traffic.calls["replicate"] >= 3
        expected = 0.05 * traffic.calls["replicate"]
        assert expected <= traffic.seconds["replicate"] < 2 * expected + 1, traffic.seconds


@pytest.mark.parametrize(("world_size", "zero", "data_replicate"), [(2, 0, 1), (4, 3, 2)])
def test_seconds_of_sums_between_groups_are_those_of_the_sums(world_size: int, zero: int, data_replicate: int) -> None:
    run_distributed(late_sums, world_size, world_size, zero, data_replicate)


def tensor_axis() -> None:
    with connect(device="cpu") as world:
        model = prepare(build("gpt2", tied=True), world, ParallelConfig(tensor=2, zero=3))
        traffic = prepared(model).traffic
        batch = global_batch(0)
        batch.pop("attention_mask")
        rows, layers, width = batch["input_ids"].numel(), 2, 16
        targets = count(batch["labels"], "gpt2")
        traffic.clear()
        with Wire() as wire:
            model(**batch).loss.backward()
        # attention and feed-forward of each layer, and the embedding; the loss takes its place on the way back. In the first layer
        # each sum is a gather and a sum that is cut, of as many bytes in all
        forward = (2 * layers + 1) * rows * width + 3 * targets
        backward = 2 * layers * rows * width + targets * width
        # tokens cut before the first layer and put together after it; two norms and two biases see slices
        slices = 2 * rows * width // 2 + 2 * (2 * width) + 2 * width
        expected = 2 * (forward + backward) * 4 // 2 + slices * 4
        assert traffic.sent_bytes["tensor"] == expected
        assert sum(wire.sent.values()) == expected


def test_bytes_of_a_tensor_axis_are_its_sums() -> None:
    run_distributed(tensor_axis, 2)


def test_traffic_adds_up_and_clears() -> None:
    traffic = Traffic()
    with traffic.timed("gather", 10):
        pass
    traffic.add("gather", 5, 0.5)
    traffic.add("tensor", 1, 0.25)
    assert traffic.sent_bytes == {"gather": 15, "tensor": 1}
    assert traffic.calls == {"gather": 2, "tensor": 1}
    assert traffic.seconds["gather"] >= 0.5
    traffic.clear()
    assert not traffic.sent_bytes
    assert not traffic.seconds
    assert not traffic.calls


def test_an_exchange_that_fails_is_counted_too() -> None:
    traffic = Traffic()

    def fail() -> Callable[[], None]:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"), traffic.timed("reduce", 3):
        fail()
    assert traffic.sent_bytes == {"reduce": 3}
