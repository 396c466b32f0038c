import pytest
import torch

from modelzoo.layers import Dropout
from modelzoo.layers.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p_and_the_mean_stays(p):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(400_000), p)
    assert abs((dropped == 0).float().mean().item() - p) < 0.004
    assert abs(dropped.mean().item() - 1) < 0.02
    kept = dropped[dropped != 0]
    assert torch.equal(kept, kept[:1].expand_as(kept))
    assert abs(kept[0].item() * (1 - p) - 1) < 1e-3


def test_neighbours_are_dropped_independently():
    # One 64-bit draw serves four elements: none of their pairs may be correlated.
    torch.manual_seed(0)
    kept = (dropout(torch.ones(400_000), 0.5) != 0).float().view(-1, 4)
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max() < 0.01


def test_gradient_has_the_mask_of_the_forward():
    hidden = torch.randn(50, 7, requires_grad=True)
    dropped = dropout(hidden, 0.3)
    dropped.sum().backward()
    torch.testing.assert_close(hidden.grad * hidden, dropped, rtol=1e-6, atol=1e-6)
    assert 0 < (hidden.grad == 0).sum() < 350


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 4), (5, 1, 3)])
def test_every_shape_and_dtype_is_kept(shape):
    for dtype in (torch.float32, torch.bfloat16):
        dropped = dropout(torch.ones(shape, dtype=dtype), 0.5)
        assert (dropped.shape, dropped.dtype) == (torch.Size(shape), dtype)


def test_transposed_input_is_dropped_by_its_own_order():
    hidden = torch.randn(6, 5).T.requires_grad_()
    dropped = dropout(hidden, 0.5)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], hidden[kept] * 2, rtol=1e-6, atol=1e-6)


def test_all_or_nothing():
    hidden = torch.randn(10)
    assert torch.equal(dropout(hidden, 0.0), hidden)
    assert torch.equal(dropout(hidden, 1.0), torch.zeros(10))


def test_evaluation_leaves_the_input_alone():
    hidden = torch.randn(10)
    assert Dropout(0.9).eval()(hidden) is hidden


def test_the_seed_decides_the_mask():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(dropout(torch.ones(64), 0.5))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_default_device_does_not_move_the_mask():
    with torch.device("meta"):
        assert dropout(torch.ones(8, device="cpu"), 0.5).device.type == "cpu"


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_impossible_probability_is_refused(p):
    with pytest.raises(ValueError, match=rf"p={p} must lie in 0 to 1"):
        Dropout(p)
