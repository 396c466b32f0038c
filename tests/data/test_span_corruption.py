"""Span corruption loses nothing, hides what the paper says, and draws anew by seed, epoch and row alone."""

import numpy as np
import pytest

from modelzoo.data.span_corruption import SpanRule, corrupt, corrupted_lengths, hole_lengths, longest_text
from modelzoo.errors import DataError

SENTINELS = tuple(range(1099, 999, -1))
RULE = SpanRule(sentinel_ids=SENTINELS, end_id=1, seed=3)


def restored(inputs: list[int], targets: list[int]) -> list[int]:
    """Put what the targets say into the holes of the inputs."""
    assert inputs[-1] == targets[-1] == RULE.end_id
    holes: dict[int, list[int]] = {}
    for token in targets[:-1]:
        if token in SENTINELS:
            holes[token] = []
        else:
            holes[next(reversed(holes))].append(token)
    return [each for token in inputs[:-1] for each in holes.get(token, [token])]


@pytest.mark.parametrize("count", [2, 3, 7, 20, 113, 568])
def test_nothing_is_lost(count: int) -> None:
    ids = np.random.default_rng(count).integers(2, 999, count).tolist()
    for epoch in range(3):
        inputs, targets = corrupt(ids, RULE, epoch=epoch, row=5)
        assert restored(inputs, targets) == ids
        assert (len(inputs), len(targets)) == corrupted_lengths(count, RULE)
        used = [token for token in inputs if token in SENTINELS]
        assert used == list(SENTINELS[: len(used)]) == [token for token in targets if token in SENTINELS]


def test_shares_and_lengths_are_those_of_the_reference() -> None:
    # transformers' run_t5_mlm_flax.compute_input_and_target_lengths(512, 0.15, 3.0) returns (568, 114)
    assert longest_text(512, RULE) == 568
    assert corrupted_lengths(568, RULE) == (512, 114)
    assert hole_lengths(568, RULE) == (85, 28)


def test_every_place_is_hidden_as_often_as_it_should_be() -> None:
    ids = list(range(2, 102))
    hidden = np.zeros(100)
    for row in range(2000):
        inputs, _ = corrupt(ids, RULE, epoch=0, row=row)
        hidden += ~np.isin(ids, inputs)
    assert hidden.sum() == 2000 * 15
    assert np.abs(hidden[10:-10] / 2000 - 0.15).max() < 0.04
    assert hidden.min() > 0.03 * 2000
    short = {tuple(corrupt(ids[:10], RULE, epoch=0, row=row)[0]) for row in range(100)}
    assert len(short) == 9  # one hole of 2 tokens, anywhere


def test_draws_depend_on_seed_epoch_and_row_alone() -> None:
    ids = list(range(2, 80))
    first = corrupt(ids, RULE, epoch=1, row=2)
    assert first == corrupt(ids, RULE, epoch=1, row=2)
    others = [
        corrupt(ids, RULE, epoch=2, row=2),
        corrupt(ids, RULE, epoch=1, row=3),
        corrupt(ids, SpanRule(sentinel_ids=SENTINELS, end_id=1, seed=4), epoch=1, row=2),
    ]
    assert all(other != first for other in others)


def test_texts_have_no_more_holes_than_there_are_sentinels() -> None:
    few = SpanRule(sentinel_ids=SENTINELS[:4], end_id=1, seed=3)
    longest = longest_text(512, few)
    assert hole_lengths(longest, few)[1] == 4 < hole_lengths(longest + 1, few)[1]
    with pytest.raises(DataError, match="max_length=2 leaves no room for a text with a hole; use at least 3"):
        longest_text(2, RULE)
