"""Operations that change values or sizes: each undone by its inverse, as far as floats allow."""

import pytest
import torch

from modelzoo.converters.value_ops import AddRows, DropRows, Scale
from modelzoo.errors import CheckpointError

TABLE = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def test_a_scale_is_undone_to_one_unit_in_the_last_place() -> None:
    op = Scale(100)
    (back,) = op.inverse.apply(op.apply([TABLE]))
    torch.testing.assert_close(back, TABLE, rtol=2**-23, atol=0)
    assert op.inverse.inverse == op


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_power_of_two_is_undone_exactly(dtype: torch.dtype) -> None:
    table = TABLE.to(dtype)
    (scaled,) = Scale(8).inverse.apply([table])
    assert scaled.dtype == dtype
    assert torch.equal(Scale(8).apply([scaled])[0], table)


def test_an_inverse_divides_and_is_not_a_rounded_product() -> None:
    assert torch.equal(Scale(100).inverse.apply([TABLE])[0], TABLE / 100)


def test_rows_of_zeros_are_dropped_and_put_back() -> None:
    padded = torch.cat([TABLE, torch.zeros(2, 4)])
    op = DropRows(2)
    (kept,) = op.apply([padded])
    assert torch.equal(kept, TABLE)
    assert torch.equal(op.inverse.apply([kept])[0], padded)
    assert op.inverse == AddRows(2)
    assert AddRows(2).inverse == op


def test_shapes_are_known_without_tensors() -> None:
    assert DropRows(1).shapes([(6, 4), (6,)]) == [(5, 4), (5,)]
    assert AddRows(1).shapes([(5, 4)]) == [(6, 4)]
    assert Scale(100).shapes([(5, 4)]) == [(5, 4)]


def test_a_row_that_holds_a_value_is_not_dropped() -> None:
    padded = torch.cat([TABLE, torch.full((1, 4), 0.25)])
    with pytest.raises(CheckpointError, match=r"expected zeros from row 6 on, found 0\.25"):
        DropRows(1).apply([padded])


@pytest.mark.parametrize(("op", "shape", "words"), [(DropRows(6), (6, 4), "more than 6 rows"), (AddRows(1), (), "tensors of rows")])
def test_tensors_without_enough_rows_are_refused(op: DropRows | AddRows, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        op.shapes([shape])
