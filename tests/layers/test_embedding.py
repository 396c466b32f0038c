import pytest
import torch
import torch.nn.functional as F
from torch import nn

from modelzoo.layers import Embedding, LearnedPositionEmbedding

IDS = torch.tensor([[1, 0, 3], [4, 4, 0]])


def test_lookup_and_gradient_equal_torch():
    theirs, ours = nn.Embedding(5, 4, padding_idx=0), Embedding(5, 4, 0)
    ours.load_state_dict(theirs.state_dict())
    for table in (ours, theirs):
        table(IDS).square().sum().backward()
    assert torch.equal(ours(IDS), theirs(IDS))
    assert torch.equal(ours.weight.grad, theirs.weight.grad)


def test_padding_row_starts_at_zero_and_gets_no_gradient():
    table = Embedding(5, 4, 3)
    (table(IDS) + 1).square().sum().backward()
    assert torch.equal(table.weight[3], torch.zeros(4))
    assert torch.equal(table.weight.grad[3], torch.zeros(4))
    assert (table.weight.grad[4] != 0).all()


@pytest.mark.parametrize("padding_idx", [-1, 5])
def test_padding_row_outside_the_table_is_refused(padding_idx):
    with pytest.raises(ValueError, match=rf"padding_idx={padding_idx} is not a row of a table of 5; use 0 to 4"):
        Embedding(5, 4, padding_idx)


def test_scale_multiplies_the_lookup_and_not_the_logits():
    table = Embedding(5, 4, scale=12.0)
    assert torch.equal(table(IDS), F.embedding(IDS, table.weight) * 12)
    hidden = torch.randn(2, 4)
    assert torch.equal(table.logits(hidden), hidden @ table.weight.T)


@pytest.mark.parametrize("offset", [0, 2])
def test_positions_count_from_the_offset(offset):
    table = LearnedPositionEmbedding(7, 4, offset=offset)
    assert table.max_positions == 7 - offset
    assert torch.equal(table(torch.arange(3)), table.weight[offset : offset + 3])


def test_a_position_at_the_padding_row_gets_no_gradient():
    table = LearnedPositionEmbedding(7, 4, 1, offset=2)
    table(torch.tensor([[-1, 0, 1]])).sum().backward()
    assert table.weight.grad.abs().sum(1).ne(0).tolist() == [False, False, True, True, False, False, False]


def test_token_tables_may_be_split_and_position_tables_may_not():
    assert Embedding(5, 4).tensor_split == "vocabulary"
    assert LearnedPositionEmbedding(5, 4).tensor_split is None


def test_print_shows_rows_width_and_options():
    assert repr(Embedding(5, 4, 0, scale=2.0)) == "Embedding(5, 4, padding_idx=0, scale=2)"
    assert repr(LearnedPositionEmbedding(7, 4, 1, offset=2)) == "LearnedPositionEmbedding(7, 4, padding_idx=1, offset=2)"
