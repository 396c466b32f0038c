"""The order is exact through resumes, the same for any number of processes, and draws from no global generator."""

import random
import time
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
import torch

from modelzoo.data import BatchStream, micro_batches, split_among
from modelzoo.errors import DataError

LENGTHS = [random.Random(7).randrange(1, 60) for _ in range(103)]


def run(stream: BatchStream, steps: int) -> list[list[int]]:
    return list(islice(stream, steps))


@pytest.mark.parametrize("size", [{"batch_size": 8}, {"batch_size": 103}, {"batch_size": 500}, {"batch_tokens": 200}])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_has_every_sample_once(size: dict[str, int], shuffle: bool) -> None:
    stream = BatchStream(LENGTHS, **size, seed=1, shuffle=shuffle)
    orders = []
    for epoch in range(3):
        batches = run(stream, stream.batches_in(epoch))
        assert stream.position == (epoch + 1) * len(LENGTHS)
        assert stream.epoch == epoch
        orders.append([sample for batch in batches for sample in batch])
        assert sorted(orders[-1]) == list(range(len(LENGTHS)))
    assert (orders[0] == orders[1]) is not shuffle


@pytest.mark.parametrize("size", [{"batch_size": 8}, {"batch_tokens": 200}])
@pytest.mark.parametrize("seed", range(4))
def test_five_resumes_at_odd_positions_change_nothing(size: dict[str, int], seed: int) -> None:
    whole = run(BatchStream(LENGTHS, **size, seed=seed), 60)
    stops = sorted(random.Random(seed).sample(range(1, 59), 5))
    resumed: list[list[int]] = []
    position = 0
    for start, stop in zip([0, *stops], [*stops, 60], strict=True):
        stream = BatchStream(LENGTHS, **size, seed=seed, position=position)
        resumed += run(stream, stop - start)
        position = stream.position
    assert resumed == whole
    first_epoch = [sample for batch in resumed for sample in batch][: len(LENGTHS)]
    assert Counter(first_epoch) == Counter(range(len(LENGTHS)))


def test_an_epochs_order_does_not_depend_on_where_the_stream_began() -> None:
    stream = BatchStream(LENGTHS, batch_size=10, seed=3)
    run(stream, 25)
    fresh = BatchStream(LENGTHS, batch_size=10, seed=3)
    for epoch in (0, 1, 7):
        assert np.array_equal(stream.order(epoch), fresh.order(epoch))


def test_a_position_inside_a_batch_still_gives_every_sample_once() -> None:
    stream = BatchStream(LENGTHS, batch_size=8, seed=1, position=5)
    rest = [sample for batch in run(stream, stream.batches_per_epoch) for sample in batch][:98]
    assert sorted([*stream.order(0)[:5].tolist(), *rest]) == list(range(103))


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {tuple(BatchStream(LENGTHS, batch_size=4, seed=seed).order(epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    stream = BatchStream(LENGTHS, batch_size=10, seed=1, drop_last=True)
    batches = run(stream, 20)
    assert {len(batch) for batch in batches} == {10}
    assert stream.batches_per_epoch == 10
    assert stream.position == 200
    assert [sample for batch in batches[10:] for sample in batch] == stream.order(1)[:100].tolist()


def test_batch_tokens_are_filled_but_never_exceeded() -> None:
    stream = BatchStream(LENGTHS, batch_tokens=150, seed=1)
    batches = run(stream, stream.batches_per_epoch)
    totals = [sum(LENGTHS[sample] for sample in batch) for batch in batches]
    assert max(totals) <= 150
    following = [LENGTHS[batch[0]] for batch in batches[1:]]
    assert all(total + longer > 150 for total, longer in zip(totals, following, strict=False))


def test_steps_of_whole_and_broken_epochs() -> None:
    stream = BatchStream(LENGTHS, batch_size=10, seed=1)
    assert [stream.steps_for(epochs) for epochs in (1, 3, 0.5, 2.1, 0.01, 1 / 11)] == [11, 33, 6, 24, 1, 1]
    by_tokens = BatchStream(LENGTHS, batch_tokens=150, seed=1)
    assert by_tokens.steps_for(3) == sum(by_tokens.batches_in(epoch) for epoch in range(3))
    run(by_tokens, by_tokens.steps_for(2))
    assert by_tokens.position == 2 * len(LENGTHS)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(DataError, match=f"expected epochs above 0, found {wrong}"):
            stream.steps_for(wrong)


def test_no_global_generator_is_drawn_from() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    stream = BatchStream(LENGTHS, batch_size=8, seed=1)
    iter(stream)
    split_among(next(stream), LENGTHS, 3)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_the_order_is_spread_evenly() -> None:
    first = Counter(int(BatchStream([1] * 5, batch_size=1, seed=seed).order(0)[0]) for seed in range(2000))
    assert min(first.values()) > 320  # 400 expected, standard deviation 18


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected batch_size or batch_tokens, found batch_size=None and batch_tokens=None"),
        ({"batch_size": 2, "batch_tokens": 9}, "found batch_size=2 and batch_tokens=9"),
        ({"batch_size": 0}, "expected a batch of at least 1, found 0"),
        ({"batch_tokens": -1}, "expected a batch of at least 1, found -1"),
        ({"batch_tokens": 9, "drop_last": True}, "drop_last needs batch_size, found batch_tokens=9"),
        ({"batch_size": 9, "drop_last": True}, "expected at least one batch, found 3 samples for batch_size=9"),
        ({"batch_tokens": 8}, "sample 1 has 9 tokens, limit batch_tokens=8; raise it or lower max_length"),
        ({"batch_size": 1, "position": -1}, "expected a position of at least 0, found -1"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        BatchStream([3, 9, 4], seed=0, **options)


def test_no_samples_are_refused() -> None:
    with pytest.raises(DataError, match="expected at least one batch, found 0 samples for batch_size=4"):
        BatchStream([], batch_size=4, seed=0)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 40])
def test_a_split_has_each_sample_once_and_about_equal_tokens(parts: int) -> None:
    batch = next(BatchStream(LENGTHS, batch_size=32, seed=2))
    shares = split_among(batch, LENGTHS, parts)
    assert len(shares) == parts
    assert Counter(sample for share in shares for sample in share) == Counter(batch)
    loads = [sum(LENGTHS[sample] for sample in share) for share in shares]
    assert max(loads) - min(loads) <= max(LENGTHS)
    assert split_among(batch, LENGTHS, parts) == shares
    assert all(share == [sample for sample in batch if sample in set(share)] for share in shares)


def test_one_part_is_the_batch_itself_and_no_part_is_refused() -> None:
    assert split_among([5, 3, 9], LENGTHS, 1) == [[5, 3, 9]]
    assert sorted(map(len, split_among([5, 3], LENGTHS, 4))) == [0, 0, 1, 1]
    with pytest.raises(DataError, match="expected at least 1 part, found 0"):
        split_among([1], LENGTHS, 0)


def test_the_global_batches_do_not_depend_on_the_number_of_processes() -> None:
    for batch in run(BatchStream(LENGTHS, batch_size=16, seed=4), 7):
        for parts in (1, 2, 4):
            assert sorted(chain(*split_among(batch, LENGTHS, parts))) == sorted(batch)


def test_micro_batches_hold_their_limits_longest_first() -> None:
    batch = next(BatchStream(LENGTHS, batch_size=64, seed=2))
    pieces = micro_batches(batch, LENGTHS, max_rows=7, max_tokens=100)
    assert Counter(chain(*pieces)) == Counter(batch)
    assert max(map(len, pieces)) <= 7
    assert all(len(piece) * max(LENGTHS[sample] for sample in piece) <= 100 for piece in pieces)
    lengths = [LENGTHS[sample] for sample in chain(*pieces)]
    assert lengths == sorted(lengths, reverse=True)


def test_micro_batches_without_limits_and_of_nothing() -> None:
    assert [sorted(piece) for piece in micro_batches([4, 2, 7], LENGTHS)] == [[2, 4, 7]]
    assert micro_batches([], LENGTHS, max_rows=2) == []
    assert micro_batches([0, 1], [500, 3], max_tokens=100) == [[0], [1]]
    for options in ({"max_rows": 0}, {"max_tokens": 0}):
        with pytest.raises(DataError, match=f"expected {next(iter(options))} of at least 1, found 0"):
            micro_batches([1], LENGTHS, **options)


def test_seeking_costs_one_permutation_however_far() -> None:
    lengths = [8] * 1000
    far = BatchStream(lengths, batch_size=10, seed=0, position=10**12 + 500)
    started = time.perf_counter()
    batch = next(far)
    assert time.perf_counter() - started < 0.1
    assert far.epoch == 10**9
    assert batch == far.order(10**9)[500:510].tolist()


@pytest.mark.parametrize("sizes", [{"batch_size": 4}, {"batch_tokens": 30}])
def test_a_stream_that_stopped_at_the_end_of_an_epoch_goes_on_with_the_next(sizes: dict[str, int]) -> None:
    lengths = [5 + number % 7 for number in range(22)]
    whole = BatchStream(lengths, seed=3, **sizes)
    batches = [next(whole) for _ in range(3 * whole.batches_in(0) + 3)]
    resumed = BatchStream(lengths, seed=3, position=22, **sizes)
    assert [next(resumed) for _ in range(whole.batches_in(1))] == batches[whole.batches_in(0) :][: whole.batches_in(1)]
    assert resumed.position == 44
