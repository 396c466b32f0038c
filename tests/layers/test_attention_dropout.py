import pytest
import torch
from naive_attention import fill

from modelzoo.layers import AlibiBias, Attention, Layout, Position, RelativePositionBias

X = torch.randn(3, 6, 12, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": 3}, {"num_key_value_heads": 1, "is_causal": True}])
@pytest.mark.parametrize("bias", [None, AlibiBias(3), RelativePositionBias(3, num_buckets=8, max_distance=16)])
@pytest.mark.parametrize("layout", [Layout.dense(3, 6), Layout.dense(3, 6, mask=MASK), Layout.packed(MASK)])
def test_the_training_path_equals_the_plain_one_where_nothing_is_dropped(options, bias, layout):
    layer = fill(Attention(12, 3, dropout=1e-9, **options))
    position = Position() if bias is None else bias(layout)
    x = layout.pack(X)
    expected, found = layer.eval()(x, layout, position=position), layer.train()(x, layout, position=position)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_dropped_weights_have_the_share_and_the_mean_asked_for():
    # Values are one-hot, so that the output shows the weights themselves.
    layer = Attention(64, 1, dropout=0.25, bias=False)
    layer.query.weight.data.zero_()
    for each in (layer.value, layer.output):
        each.weight.data = torch.eye(64)
    torch.manual_seed(0)
    weights = layer(torch.eye(64).repeat(20, 1, 1), Layout.dense(20, 64)) * 64
    assert abs((weights == 0).float().mean().item() - 0.25) < 0.01
    assert abs(weights.mean().item() - 1) < 0.01
    torch.testing.assert_close(weights[weights != 0], torch.full_like(weights[weights != 0], 4 / 3), rtol=1e-4, atol=0)


def test_a_dropped_weight_passes_no_gradient():
    layer = Attention(8, 1, dropout=0.5, bias=False)
    layer.query.weight.data.zero_()
    for each in (layer.value, layer.output):
        each.weight.data = torch.eye(8)
    torch.manual_seed(0)
    context = torch.eye(8)[None].requires_grad_()
    found = layer(torch.zeros(1, 1, 8), Layout.dense(1, 1), context=context, context_layout=Layout.dense(1, 8))
    found.sum().backward()
    assert torch.equal(context.grad[0].abs().sum(1) > 0, found[0, 0] > 0)


def test_evaluation_drops_nothing():
    plain, layer = fill(Attention(12, 3)), fill(Attention(12, 3, dropout=0.9)).eval()
    assert torch.equal(layer(X, Layout.dense(3, 6)), plain(X, Layout.dense(3, 6)))
