"""Runs that are killed without warning, at any moment, go on bit for bit."""

import pytest
from kill_campaign import Killer


def check(found, kills, record_property, most_lost=1):
    for name in ("kills", "resumable", "exact", "lost", "runs", "slowest_survivor_s"):
        record_property(name, round(getattr(found, name), 1))
    assert not found.problems
    assert (found.resumable, found.exact) == (found.kills, found.kills)
    assert found.kills >= kills
    assert found.lost <= most_lost, "more save intervals than promised"
    assert found.runs >= 1


def test_run_killed_twenty_times_goes_on_bit_for_bit(tmp_path, record_property):
    check(Killer(tmp_path).run(20), 20, record_property)


@pytest.mark.slow
def test_run_killed_two_hundred_times_goes_on_bit_for_bit(tmp_path, record_property):
    check(Killer(tmp_path, seed=1).run(200), 200, record_property)


@pytest.mark.slow
def test_run_of_two_ranks_killed_at_either_or_both_goes_on_bit_for_bit(tmp_path, record_property):
    check(Killer(tmp_path, ranks=2, seed=2).run(60), 60, record_property)


@pytest.mark.slow
def test_run_that_saves_in_the_background_loses_two_intervals_at_most(tmp_path, record_property):
    found = Killer(tmp_path, seed=3, checkpoint__background=True).run(40)
    check(found, 40, record_property, most_lost=2)
