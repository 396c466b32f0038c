import pytest
import torch
from transformers import CpmAntConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.cpmant.modeling_cpmant import CpmAntSegmentPositionEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from modelzoo.layers import AlibiBias, Layout, RelativePositionBias, SegmentPositionBias
from modelzoo.layers.position_bias import relative_buckets

DISTANCES = torch.arange(-300, 301)
SIZES = [(32, 128), (16, 64), (8, 20), (4, 5), (64, 256), (512, 2048)]


@pytest.mark.parametrize(("num_buckets", "max_distance"), SIZES)
@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_buckets_equal_t5(num_buckets, max_distance, is_bidirectional):
    expected = T5Attention._relative_position_bucket(DISTANCES, is_bidirectional, num_buckets, max_distance)
    found = relative_buckets(DISTANCES, num_buckets=num_buckets, max_distance=max_distance, is_bidirectional=is_bidirectional)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("num_buckets", "max_distance"), SIZES[:5])
@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_every_bucket_that_is_used_receives_gradient(num_buckets, max_distance, is_bidirectional):
    # ModelCenter's padding_idx=-1 left the last one, the farthest distance, without.
    layer = RelativePositionBias(2, num_buckets=num_buckets, max_distance=max_distance, is_bidirectional=is_bidirectional)
    layer(Layout.dense(1, 300)).bias.sum().backward()
    used = relative_buckets(DISTANCES[1:-1], num_buckets=num_buckets, max_distance=max_distance, is_bidirectional=is_bidirectional)
    missing = set(range(num_buckets)) - set(used.tolist())
    # The bucket of distance 0 among the later keys is never used, in T5 neither.
    assert num_buckets - 1 not in missing
    assert len(missing) <= 1
    assert set(layer.weight.grad.abs().sum(1).nonzero().flatten().tolist()) == set(used.tolist())


def test_bias_is_looked_up_for_each_head():
    layer = RelativePositionBias(3, num_buckets=8, max_distance=16)
    bias = layer(Layout.dense(1, 5)).bias
    distance = torch.arange(5)[None, :] - torch.arange(5)[:, None]
    buckets = relative_buckets(distance, num_buckets=8, max_distance=16, is_bidirectional=True)
    assert torch.equal(bias, layer.weight[buckets].permute(2, 0, 1)[None])


MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])


@pytest.mark.parametrize("layer", [RelativePositionBias(3, num_buckets=8, max_distance=16), AlibiBias(3)])
def test_packed_bias_is_one_a_sequence(layer):
    whole = layer(Layout.dense(2, 5)).bias[0]
    first, second = layer(Layout.packed(MASK)).bias
    torch.testing.assert_close(first, whole[:, :3, :3])
    torch.testing.assert_close(second, whole[:, 2:, 2:])


@pytest.mark.parametrize("layer", [RelativePositionBias(3, num_buckets=8, max_distance=16), AlibiBias(3)])
def test_bias_of_a_later_part_is_that_part_of_the_whole(layer):
    whole = layer(Layout.dense(1, 6)).bias
    torch.testing.assert_close(layer(Layout.dense(1, 2, start=4)).bias, whole[:, :, 4:])


@pytest.mark.parametrize("layer", [RelativePositionBias(3, num_buckets=8, max_distance=16), AlibiBias(3)])
def test_bias_to_a_context_uses_its_columns(layer):
    assert torch.equal(layer(Layout.dense(1, 2), Layout.dense(1, 6)).bias, layer(Layout.dense(1, 6)).bias[:, :, :2])


def test_segment_bias_equals_cpm_ant():
    config = CpmAntConfig(num_attention_heads=3, position_bias_num_buckets=16, position_bias_max_distance=32, segment_types=4)
    theirs, ours = CpmAntSegmentPositionEmbedding(config), SegmentPositionBias(3, num_segments=4, num_buckets=16, max_distance=32)
    ours.init_weights(1.0)
    theirs.relative_attention_bias.data = ours.weight.data.clone()
    segments = torch.tensor([[0, 0, 2, 2, 1, 1, 3] * 6, [1] * 42])
    places = torch.arange(42).expand(2, -1)
    expected = theirs(places, places, segments, segments)
    found = ours(Layout.dense(2, 42), segments).bias
    assert torch.equal(found, expected)
    for each in (found, expected):
        each.pow(3).sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.relative_attention_bias.grad, rtol=1e-5, atol=1e-5)


def test_packed_segment_bias_is_one_a_sequence():
    layer, segments = (
        SegmentPositionBias(3, num_segments=2, num_buckets=8, max_distance=16),
        torch.tensor([[0, 0, 1, 0, 0], [0, 0, 1, 1, 0]]),
    )
    whole, layout = layer(Layout.dense(2, 5), segments).bias, Layout.packed(MASK)
    first, second = layer(layout, layout.pack(segments)).bias
    assert torch.equal(first, whole[0, :, :3, :3])
    assert torch.equal(second, whole[1, :, 2:, 2:])


def test_segment_bias_to_other_keys_is_that_part_of_the_whole():
    layer, segments = SegmentPositionBias(3, num_segments=2, num_buckets=8, max_distance=16), torch.tensor([[0, 1, 1, 0, 1]])
    whole = layer(Layout.dense(1, 5), segments).bias
    assert torch.equal(layer(Layout.dense(1, 2), segments[:, :2], Layout.dense(1, 5), segments).bias, whole[:, :, :2])


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_alibi_equals_transformers_up_to_a_constant_a_row(num_heads):
    theirs = (
        build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), num_heads, torch.float32)
        .view(1, num_heads, 1, 9)
        .expand(-1, -1, 9, -1)
    )
    mine = AlibiBias(num_heads)(Layout.dense(1, 9)).bias
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    softmax = [torch.softmax(each.masked_fill(~causal, float("-inf")), -1) for each in (mine, theirs)]
    torch.testing.assert_close(*softmax, rtol=1e-5, atol=1e-6)


def test_alibi_slopes_are_those_of_the_paper():
    assert AlibiBias(8).slopes.tolist() == [2.0**-i for i in range(1, 9)]


@pytest.mark.parametrize("num_heads", [3, 8])
def test_alibi_stays_float32_in_half_precision(num_heads):
    # Distances above 256 are not whole numbers in bfloat16.
    half = AlibiBias(num_heads).to(torch.bfloat16)(Layout.dense(1, 400)).bias
    assert torch.equal(half, AlibiBias(num_heads)(Layout.dense(1, 400)).bias)


def test_alibi_is_right_again_after_a_build_without_memory():
    with torch.device("meta"):
        layer = AlibiBias(6)
    layer.to_empty(device="cpu").init_weights()
    assert torch.equal(layer.slopes, AlibiBias(6).slopes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_buckets": 2}, "num_buckets=2 must be at least 4"),
        ({"num_buckets": 7}, "num_buckets=7 must be even when bidirectional"),
        ({"num_buckets": 32, "max_distance": 8}, "max_distance=8 must be greater than 8, which 32 buckets tell apart exactly"),
    ],
)
def test_impossible_buckets_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RelativePositionBias(2, **arguments)
    with pytest.raises(ValueError, match=message):
        SegmentPositionBias(2, num_segments=2, **arguments)


def test_print_shows_the_sizes():
    assert repr(RelativePositionBias(3)) == "RelativePositionBias(3 heads, 32 buckets, max_distance=128, bidirectional)"
    assert (
        repr(SegmentPositionBias(3, num_segments=4)) == "SegmentPositionBias(3 heads, 4 segments, 512 buckets, max_distance=2048)"
    )
    assert repr(AlibiBias(3)) == "AlibiBias(3 heads)"


def test_a_causal_bias_may_have_an_odd_number_of_buckets():
    assert RelativePositionBias(2, num_buckets=7, is_bidirectional=False)(Layout.dense(1, 9)).bias.shape == (1, 2, 9, 9)
    with pytest.raises(ValueError, match="max_distance=16 must be greater than 16, which 32 buckets"):
        RelativePositionBias(2, max_distance=16, is_bidirectional=False)
