"""Boxes and wholes of tensors that are cut once or twice, in sizes that nothing divides."""

import sys

import pytest
import torch
from distributed import run_distributed
from torch import nn

from modelzoo.sharded import full_tensor, is_sharded, local_box, local_part, local_values, write_local

SHAPES = ((7, 3), (1, 5), (2, 2), (5,), (3, 4), (13, 2))


def every_cut(data: int, tensor: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from modelzoo.runtime import connect
    from modelzoo.runtime.tensor.local_view import cut_parameter

    with connect(device="cpu"):
        mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("shard", "tensor"))
        for shape in SHAPES:
            whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
            for dim in (None, *range(len(shape))):
                if dim == 1 and shape[1] % tensor:  # rows of a table alone may be uneven over a tensor axis; others are refused
                    continue
                model = nn.Module()
                model.weight = nn.Parameter(whole.clone())
                if dim is not None:
                    model.weight = cut_parameter(model.weight, mesh["tensor"], dim)
                fully_shard(model, mesh=mesh["shard"])
                found = model.weight
                assert is_sharded(found)
                sides = tuple(piece.stop - piece.start for piece in local_box(found))
                assert sides == tuple(local_values(found).shape), (shape, dim, found.placements)
                assert torch.equal(local_part(found, whole), local_values(found)), (shape, dim)
                assert torch.equal(full_tensor(found), whole), (shape, dim)
                write_local(found, 2 * local_values(found))
                assert torch.equal(full_tensor(found.detach()), 2 * whole), (shape, dim)


@pytest.mark.parametrize(("data", "tensor"), [(2, 1), (3, 1), (1, 3), (2, 2), (4, 1)])
def test_parts_and_wholes_agree(data: int, tensor: int) -> None:
    run_distributed(every_cut, data * tensor, data, tensor)


def test_a_plain_tensor_is_its_own_part_and_whole() -> None:
    tensor = torch.arange(3.0, requires_grad=True)
    assert not is_sharded(tensor)
    assert full_tensor(tensor) is tensor
    assert local_values(tensor).data_ptr() == tensor.data_ptr()
    assert not local_values(tensor).requires_grad


def test_asking_imports_no_distributed_tensors(tmp_path) -> None:
    import subprocess

    code = """
import sys, torch
from modelzoo.sharded import is_sharded
assert not is_sharded(torch.zeros(1))
print("torch.distributed.tensor" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout.strip() == "False"


def partial() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    from modelzoo.runtime import connect

    with connect(device="cpu") as world:
        mesh = init_device_mesh("cpu", (world.world_size,))
        tensor = DTensor.from_local(torch.ones(2), mesh, [Partial()])
        with pytest.raises(ValueError, match=r"placements \(Partial\(sum\),\): expected shards and replicas"):
            local_box(tensor)
        with pytest.raises(ValueError, match=r"placements \(Partial\(sum\),\): expected shards and replicas"):
            full_tensor(tensor)


def test_sums_that_are_not_made_yet_have_no_box() -> None:
    run_distributed(partial, 2)
