"""Memory that is used again, and never while somebody still holds it."""

import torch

from modelzoo.runtime.exchange.reused import ReusedBuffers

CPU = torch.device("cpu")


def test_memory_that_nobody_holds_is_handed_out_again() -> None:
    buffers = ReusedBuffers()
    buffers.empty((8,), dtype=torch.float32, device=CPU)
    address = buffers.empty((8,), dtype=torch.float32, device=CPU).data_ptr()
    for _ in range(3):
        assert buffers.empty((2, 4), dtype=torch.float32, device=CPU).data_ptr() == address


def test_a_view_keeps_its_memory() -> None:
    buffers = ReusedBuffers()
    buffers.empty((8,), dtype=torch.float32, device=CPU)
    view = torch.as_strided(buffers.empty((8,), dtype=torch.float32, device=CPU), (2,), (1,), 3).fill_(7.0)
    for _ in range(3):
        buffers.empty((8,), dtype=torch.float32, device=CPU).fill_(1.0)
    assert view.tolist() == [7.0, 7.0]


def test_another_size_or_dtype_lets_go_of_what_was_kept() -> None:
    buffers = ReusedBuffers()
    for size, dtype in (((8,), torch.float32), ((8,), torch.bfloat16), ((9,), torch.bfloat16)):
        for _ in range(3):
            found = buffers.empty(size, dtype=dtype, device=CPU)
            assert (found.shape, found.dtype) == (torch.Size(size), dtype)
            del found
    assert [(buffer.numel(), buffer.dtype) for buffer, _ in buffers._kept] == [(9, torch.bfloat16)]


def test_what_came_once_is_not_kept() -> None:
    buffers = ReusedBuffers()
    for size in (8, 9, 8, 9):
        buffers.empty((size,), dtype=torch.float32, device=CPU)
    assert buffers._kept == []
