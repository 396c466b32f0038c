"""Batches are padded on the right, and what does not fit the model is named before the forward."""

import pytest
import torch

from modelzoo.data import check_batch, collate, count_targets
from modelzoo.errors import DataError


def test_padding_mask_types_and_labels() -> None:
    items = [
        {"input_ids": [5, 6, 7], "token_type_ids": [0, 1, 1], "labels": 1},
        {"input_ids": [8], "token_type_ids": [0], "labels": 0},
    ]
    batch = collate(items, pad_id=9)
    assert list(batch) == ["input_ids", "attention_mask", "token_type_ids", "labels"]
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [0, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert {value.dtype for value in batch.values()} == {torch.int64}


def test_the_mask_goes_by_length_where_the_text_has_the_padding_id() -> None:
    batch = collate([{"input_ids": [5, 9, 9]}, {"input_ids": [9]}], pad_id=9)
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "token_type_ids" not in batch
    assert count_targets(batch) == 0


def test_token_labels_are_padded_with_minus_100() -> None:
    batch = collate([{"input_ids": [5, 6], "labels": [-100, 3]}, {"input_ids": [5], "labels": [0]}], pad_id=0)
    assert batch["labels"].tolist() == [[-100, 3], [0, -100]]
    assert count_targets(batch) == 2


def test_questions_have_positions() -> None:
    batch = collate([{"input_ids": [5, 6], "start_positions": 0, "end_positions": 1}], pad_id=0)
    assert batch["start_positions"].tolist() == [0]
    assert count_targets(batch) == 1


def test_nothing_and_unlike_samples_are_refused() -> None:
    with pytest.raises(DataError, match="expected at least one sample to collate, found none; skip the forward"):
        collate([], pad_id=0)
    with pytest.raises(DataError, match="sample 1 of the batch: expected the fields input_ids, labels, found input_ids"):
        collate([{"input_ids": [1], "labels": 1}, {"input_ids": [1]}], pad_id=0)


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"input_ids": ids([1, 2], [3, 50])}, r"input_ids: row 1, position 1: expected 0 <= value < 50 \(vocab_size\), found 50"),
        ({"input_ids": ids([1, -1])}, r"input_ids: row 0, position 1: expected 0 <= value < 50 \(vocab_size\), found -1"),
        ({"input_ids": ids([1, 2**40])}, r"row 0, position 1: .*, found 1099511627776; use the checkpoint's own tokenizer"),
        ({"input_ids": ids([1] * 18)}, r"input_ids: 18 tokens, limit 16; lower data.max_length"),
        ({"input_ids": ids([1]).float()}, r"input_ids: expected integers, found torch.float32; convert with .long\(\)"),
        ({"input_ids": torch.tensor([1, 2])}, r"input_ids: expected shape \(rows, tokens\), none of them 0, found \(2,\)"),
        ({"input_ids": torch.zeros(2, 0).long()}, r"input_ids: expected shape .*, found \(2, 0\)"),
        (
            {"input_ids": ids([1, 2]), "token_type_ids": ids([0, 1])},
            r"token_type_ids: row 0, position 1: expected 0 <= value < 1 \(type_vocab_size\), found 1; leave token_type_ids out",
        ),
        (
            {"input_ids": ids([1], [2]), "labels": torch.tensor([1, 3])},
            r"labels: row 1: expected 0 <= value < 3 \(num_labels\), found 3",
        ),
        (
            {"input_ids": ids([1, 2]), "labels": ids([-100, -1])},
            r"labels: row 0, position 1: expected 0 <= value < 3 \(num_labels\), found -1; .*only -100 means ignored",
        ),
        (
            {"input_ids": ids([1, 2]), "start_positions": torch.tensor([0]), "end_positions": torch.tensor([2])},
            r"end_positions: row 0: expected 0 <= value < 2 \(tokens\), found 2",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_row_position_value_and_limit(batch: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_batch(batch, 50, max_length=16, num_labels=3, type_vocab_size=1)


def test_negative_labels_are_refused_without_a_limit_too() -> None:
    with pytest.raises(DataError, match="labels: row 0: expected at least 0, found -7"):
        check_batch({"input_ids": ids([1]), "labels": torch.tensor([-7])}, 50)


def test_what_fits_passes() -> None:
    batch = {"input_ids": ids([0, 49]), "token_type_ids": ids([0, 1]), "labels": ids([-100, 2])}
    check_batch(batch, 50, max_length=2, num_labels=3, type_vocab_size=2)
    check_batch(batch, 50)
