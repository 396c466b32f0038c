import gc
import weakref

import pytest
import torch

from modelzoo.layers import Layout
from modelzoo.layers.masks import attention_masks

X = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
MASKS = {
    "none": [[1] * 5] * 4,
    "right": [[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [1] * 5, [0, 0, 0, 0, 1], [0, 1, 1, 1, 1]],
    "within": [[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [1] * 5, [0, 0, 1, 0, 0]],
    "empty rows": [[0] * 5, [0, 1, 1, 0, 0], [0] * 5, [0] * 5],
    "last row alone": [[0] * 5, [0] * 5, [0] * 5, [0, 0, 0, 0, 1]],
    "nothing": [[0] * 5] * 4,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_unpack_undoes_pack_and_zeroes_padding(name, dtype):
    mask = torch.tensor(MASKS[name])
    layout = Layout.packed(mask.to(dtype))
    packed = layout.pack(X)
    assert packed.shape == (int(mask.sum()), 3)
    assert sum(layout.lengths) == len(packed)
    assert torch.equal(layout.unpack(packed), X * mask[..., None])
    assert torch.equal(layout.pack(layout.unpack(packed)), packed)
    assert torch.equal(layout.pack(X[..., 0]), packed[:, 0])


@pytest.mark.parametrize("name", MASKS)
def test_first_rows_are_the_first_real_tokens(name):
    mask = torch.tensor(MASKS[name])
    layout = Layout.packed(mask)
    first = layout.first_rows()
    expected = torch.zeros(4, 3)
    for row in range(4):
        if mask[row].any():
            expected[row] = X[row, mask[row].argmax()]
    packed = layout.pack(X)
    assert torch.equal(first.spread(first.take(packed)), expected)
    assert torch.equal(first.layout.columns, first.take(layout.columns))
    assert torch.equal(first.layout.positions, first.take(layout.positions))


@pytest.mark.parametrize("name", MASKS)
def test_last_rows_are_the_last_real_tokens(name):
    mask = torch.tensor(MASKS[name])
    layout = Layout.packed(mask)
    last = layout.last_rows()
    expected = torch.zeros(4, 3)
    for row in range(4):
        if mask[row].any():
            expected[row] = X[row, mask[row].nonzero()[-1, 0]]
    assert torch.equal(last.spread(last.take(layout.pack(X))), expected)


def test_first_rows_of_a_dense_layout_are_its_first_column():
    first = Layout.dense(4, 5, positions=torch.arange(5, 10)[None]).first_rows()
    assert torch.equal(first.spread(first.take(X)), X[:, 0])
    assert first.layout.positions.tolist() == [[5]]
    last = Layout.dense(4, 5).last_rows()
    assert torch.equal(last.spread(last.take(X)), X[:, -1])


def test_first_rows_of_a_dense_layout_with_padding_are_refused():
    with pytest.raises(ValueError, match="the ends of a dense layout are known only without a mask"):
        Layout.dense(4, 5, mask=torch.tensor(MASKS["left"])).first_rows()


def test_first_rows_of_rows_with_several_spans_are_those_of_the_first_span():
    layout = Layout.packed(
        torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]), spans=torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1], [0] * 4])
    )
    first = layout.first_rows()
    assert first.layout.lengths == (1, 0, 1, 0)
    assert first.take(layout.columns).tolist() == [1, 0]
    assert first.spread(torch.ones(2, 1)).tolist() == [[1.0], [1.0], [0.0]]
    last = layout.last_rows()
    assert last.layout.lengths == (0, 1, 0, 1)
    assert last.take(layout.columns).tolist() == [3, 1]


def test_positions_are_columns_unless_given():
    mask = torch.tensor(MASKS["left"])
    assert Layout.packed(mask).positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 4, 4, 1, 2, 3, 4]
    given = torch.arange(20).view(4, 5)
    assert torch.equal(Layout.packed(mask, given).positions, given[mask.bool()])
    shared = Layout.packed(mask, torch.arange(10, 15)[None])
    assert torch.equal(shared.positions, Layout.packed(mask).positions + 10)
    assert torch.equal(shared.columns, Layout.packed(mask).columns)


def test_dense_keeps_its_input_and_counts_from_its_start():
    layout = Layout.dense(4, 5, start=3)
    assert not layout.is_packed
    assert layout.pack(X) is X
    assert layout.unpack(X) is X
    assert layout.columns.tolist() == [3, 4, 5, 6, 7]
    assert layout.positions.tolist() == [[3, 4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("spans", "lengths"),
    [([[0, 0, 1, 1, 1]], (2, 3)), ([[0, 1, 0, 0, 2]], (1, 1, 2, 1)), ([[7] * 5], (5,))],
)
def test_spans_cut_a_row_where_their_value_changes(spans, lengths):
    assert Layout.packed(torch.ones(1, 5), spans=torch.tensor(spans)).lengths == lengths


def test_equal_spans_of_two_rows_stay_apart():
    assert Layout.packed(torch.tensor([[1, 1, 1], [1, 1, 0]]), spans=torch.zeros(2, 3)).lengths == (3, 2)


def mask_of(query, key=None, **rule):
    return attention_masks(query, query if key is None else key, **({"is_causal": False, "window": None} | rule))


def test_no_mask_where_everything_is_allowed():
    assert mask_of(Layout.dense(4, 5)) is None
    assert mask_of(Layout.packed(torch.tensor(MASKS["right"]))) is None


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_dense_masks_hide_padding_and_leave_no_query_blind(name, is_causal):
    mask = torch.tensor(MASKS[name]).bool()
    found = mask_of(Layout.dense(4, 5, mask=mask), is_causal=is_causal).expand(4, 1, 5, 5).squeeze(1)
    order = torch.ones(5, 5, dtype=torch.bool).tril() if is_causal else torch.ones(5, 5, dtype=torch.bool)
    expected = order & mask[:, None, :]
    sees = expected.any(-1)
    assert torch.equal(found[sees], expected[sees])
    assert found.any(-1).all()


def test_masks_are_made_once_for_each_rule_and_each_pair_of_layouts():
    one, other = Layout.dense(4, 5, mask=torch.tensor(MASKS["left"])), Layout.dense(4, 5, mask=torch.tensor(MASKS["right"]))
    assert mask_of(one, is_causal=True) is mask_of(one, is_causal=True)
    assert not torch.equal(mask_of(one, is_causal=True), mask_of(other, is_causal=True))
    assert not torch.equal(mask_of(one, is_causal=True), mask_of(one).expand(4, 1, 5, 5))
    assert not torch.equal(mask_of(one, is_causal=True), mask_of(one, is_causal=True, window=2))
    short = Layout.dense(4, 2, start=3)
    assert mask_of(short, one, is_causal=True).shape[-2:] == (2, 5)
    assert mask_of(one, is_causal=True).shape[-2:] == (5, 5)


def test_a_layout_is_freed_with_its_last_user():
    layout = Layout.packed(torch.tensor(MASKS["left"]))
    first = layout.first_rows()
    mask_of(layout, is_causal=True)
    mask_of(first.layout, layout, is_causal=True)
    gone = weakref.ref(layout)
    gc.disable()
    try:
        del layout, first
        assert gone() is None
    finally:
        gc.enable()
