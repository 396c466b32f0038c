"""Operations move elements and compute nothing: there and back is bit-equal, shapes are known beforehand."""

import pytest
import torch

from modelzoo.converters.ops import Concat, Copy, Operation, RotaryPermute, Split, Stack, Transpose, Unstack
from modelzoo.errors import CheckpointError

CASES: list[tuple[Operation, list[tuple[int, ...]]]] = [
    (Copy(), [(3, 5)]),
    (Copy(), [(3, 5), (2,)]),
    (Transpose(), [(3, 5)]),
    (Transpose(), [(4, 4), (2, 3)]),
    (Split(3), [(12, 5)]),
    (Split(3, dim=1), [(5, 12)]),
    (Split((2, 1, 4)), [(7, 3)]),
    (Split((2, 1, 4)), [(7,)]),
    (Concat(2), [(3, 5), (3, 5)]),
    (Concat((1, 4), dim=1), [(3, 1), (3, 4)]),
    (RotaryPermute(2, "half_split"), [(16, 3)]),
    (RotaryPermute(3, "interleaved"), [(24,), (24, 2)]),
    (RotaryPermute(2, "half_split", rotary_size=4), [(12, 3)]),
    (Stack(3), [(2, 4)] * 3),
    (Unstack(3), [(3, 2, 4)]),
]


@pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_is_bit_equal(op: Operation, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    converted = op.apply(tensors)
    assert op.shapes(shapes) == [tuple(tensor.shape) for tensor in converted]
    back = op.inverse.apply(converted)
    assert len(back) == len(tensors)
    assert all(torch.equal(one, two) for one, two in zip(back, tensors, strict=True))
    assert op.inverse.inverse == op


@pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda value: str(value)[:60])
def test_gradients_are_mapped_like_values(op: Operation, shapes: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    converted = op.apply(tensors)
    weights = [torch.randn(tensor.shape) for tensor in converted]
    sum((one * two).sum() for one, two in zip(converted, weights, strict=True)).backward()
    mapped = op.inverse.apply(weights)
    assert all(torch.equal(tensor.grad, weight) for tensor, weight in zip(tensors, mapped, strict=True))


def test_transpose_of_a_square_is_not_the_square() -> None:
    weight = torch.randn(4, 4)
    assert torch.equal(Transpose().apply([weight])[0], weight.t())
    assert not torch.equal(Transpose().apply([weight])[0], weight)


def test_split_cuts_in_order() -> None:
    q, k, v = Split((2, 1, 1)).apply([torch.arange(8.0).view(4, 2)])
    assert torch.equal(q, torch.arange(4.0).view(2, 2))
    assert torch.equal(torch.cat([k, v]), torch.arange(4.0, 8.0).view(2, 2))


def test_rotary_permute_equals_the_two_line_reference() -> None:
    heads, size, width = 3, 8, 5
    interleaved = torch.randn(heads * size, width)
    reference = interleaved.view(heads, size // 2, 2, width).transpose(1, 2).reshape(heads * size, width)
    assert torch.equal(RotaryPermute(heads, "half_split").apply([interleaved])[0], reference)


def test_rotary_permute_leaves_rows_beyond_the_rotary_size() -> None:
    rows = torch.arange(12.0).unsqueeze(1)
    moved = RotaryPermute(2, "half_split", rotary_size=4).apply([rows])[0].flatten().tolist()
    assert moved == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


@pytest.mark.parametrize(("num_heads", "num_key_heads"), [(4, 4), (4, 2), (8, 2), (4, 1), (6, 3)])
def test_rotary_permute_needs_the_number_of_this_projections_heads(num_heads: int, num_key_heads: int) -> None:
    key = torch.randn(num_key_heads * 8, 4)
    right = RotaryPermute(num_key_heads, "half_split").apply([key])[0]
    assert torch.equal(RotaryPermute(num_key_heads, "interleaved").apply([right])[0], key)
    if num_heads != num_key_heads and key.shape[0] % num_heads == 0 and (key.shape[0] // num_heads) % 2 == 0:
        assert not torch.equal(RotaryPermute(num_heads, "half_split").apply([key])[0], right)


@pytest.mark.parametrize(
    ("op", "shapes", "words"),
    [
        (Transpose(), [(3,)], ["2 dims", "(3,)"]),
        (Split(3), [(10, 2)], ["3 equal parts", "10"]),
        (Split((2, 3)), [(6,)], ["5", "6"]),
        (Concat(2), [(2, 3), (2, 4)], ["agree", "(2, 4)"]),
        (Concat((1, 2)), [(2, 3), (1, 3)], ["(1, 2)", "(2, 1)"]),
        (Concat(3), [(2,)], ["3 tensors", "(2,)"]),
        (RotaryPermute(3, "half_split"), [(16, 2)], ["3 heads", "(16, 2)"]),
        (RotaryPermute(2, "half_split"), [(6, 2)], ["even rotary size", "3"]),
        (Stack(2), [(2,), (3,)], ["one shape", "(3,)"]),
        (Unstack(2), [(3, 1)], ["first dim of 2", "(3, 1)"]),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(op: Operation, shapes: list[tuple[int, ...]], words: list[str]) -> None:
    for call in (lambda: op.shapes(shapes), lambda: op.apply([torch.zeros(shape) for shape in shapes])):
        with pytest.raises(CheckpointError) as error:
            call()
        assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (8, 2), (4, 1), (6, 3)])
@pytest.mark.parametrize("rotary_size", [None, 2])
def test_rotary_rows_change_their_convention_and_back_by_their_own_number_of_heads(
    heads: int, key_heads: int, rotary_size: int | None
) -> None:
    for count in (heads, key_heads):
        weight, bias = torch.randn(count * 4, 5), torch.randn(count * 4)
        for tensor in (weight, bias):
            there = RotaryPermute(count, "interleaved", rotary_size)
            (turned,) = there.apply([tensor])
            (back,) = there.inverse.apply([turned])
            assert torch.equal(back, tensor)
            size = rotary_size or 4
            rows, found = tensor.unflatten(0, (count, 4)), turned.unflatten(0, (count, 4))
            assert torch.equal(found[:, :size:2], rows[:, : size // 2])  # pairs side by side were half a head apart
            assert torch.equal(found[:, 1:size:2], rows[:, size // 2 : size])
            assert torch.equal(found[:, size:], rows[:, size:])
