"""Runs that are killed without warning, at any moment, go on bit for bit."""

import pytest
from kill_campaign import Killer


def check(found, kills):
    assert not found.problems
    assert (found.resumable, found.exact) == (found.kills, found.kills)
    assert found.kills >= kills
    assert found.lost <= 1, "more than one save interval"
    assert found.runs >= 1


def test_run_killed_twenty_times_goes_on_bit_for_bit(tmp_path):
    check(Killer(tmp_path).run(20), 20)


@pytest.mark.slow
def test_run_killed_two_hundred_times_goes_on_bit_for_bit(tmp_path):
    check(Killer(tmp_path, seed=1).run(200), 200)


@pytest.mark.slow
def test_run_of_two_ranks_killed_at_either_or_both_goes_on_bit_for_bit(tmp_path):
    check(Killer(tmp_path, ranks=2, seed=2).run(60), 60)


@pytest.mark.slow
def test_run_that_saves_in_the_background_loses_two_intervals_at_most(tmp_path):
    found = Killer(tmp_path, seed=3, checkpoint__background=True).run(40)
    assert not found.problems
    assert (found.resumable, found.exact) == (found.kills, found.kills)
    assert found.lost <= 2
