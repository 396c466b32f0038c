"""One row times a weight on all threads: `F.linear`'s result, for any shape and number of threads, copied only where it says so."""

import pytest
import torch
import torch.nn.functional as F

from modelzoo.generation import row_product
from modelzoo.generation.row_product import RowProduct


@pytest.fixture(autouse=True)
def cut_small_weights(monkeypatch):
    monkeypatch.setattr(row_product, "_SMALLEST_CHUNK", 1)
    torch.manual_seed(0)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("sizes", [(12,), (13,), (48,), (49,), (24, 24), (25, 25), (24, 6, 6), (7, 5, 5)])
def test_the_result_is_that_of_a_linear_map(monkeypatch, threads, bias, scale, sizes):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weights = [torch.randn(size, 12) for size in sizes]
    biases = [torch.randn(size) for size in sizes] if bias else None
    hidden = torch.randn(1, 1, 12)
    expected = F.linear(hidden, torch.cat(weights)) * scale
    if biases is not None:
        expected = expected + torch.cat(biases)
    product = RowProduct(weights, biases, scale)
    torch.testing.assert_close(product(hidden), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(product(hidden[0]), expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(product(hidden[0, 0]), expected[0, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(product(hidden.unsqueeze(1)), expected.unsqueeze(1), rtol=0, atol=1e-5)


def test_more_outputs_than_a_tile_are_transposed(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    weight, hidden = torch.randn(2 * 600 + 1, 3), torch.randn(1, 3)
    torch.testing.assert_close(RowProduct([weight], None)(hidden), F.linear(hidden, weight), rtol=0, atol=1e-5)


def test_a_narrow_weight_is_read_where_it_is_and_a_wide_one_is_copied(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    narrow, wide, uneven = torch.randn(22, 12), torch.randn(24, 12), torch.randn(21, 12)
    assert RowProduct([narrow], None).size_bytes == 0
    assert RowProduct([wide], None).size_bytes == 24 * 12 * 4
    assert RowProduct([uneven], None).size_bytes == 22 * 12 * 4, "chunks do not divide it, so that it is copied with a row of zeros"


def test_small_weights_are_left_to_fewer_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(row_product, "_SMALLEST_CHUNK", 100)
    weight, hidden = torch.randn(30, 10), torch.randn(1, 10)
    product = RowProduct([weight], None)
    assert product.size_bytes == 30 * 10 * 4
    torch.testing.assert_close(product(hidden), F.linear(hidden, weight), rtol=0, atol=1e-5)
