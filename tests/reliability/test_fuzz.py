"""Hostile mutants of every kind of file are refused by name, or read as what they are; two thousand of them in the slow test."""

from collections.abc import Callable

import pytest
from fuzz import fuzz
from fuzz_targets import TARGETS

MANY = -(-2000 // len(TARGETS))
QUICK = {"a safetensors file": 40, "a checkpoint that vouches for its damage": 40}


@pytest.mark.parametrize("target", QUICK)
def test_some_hostile_mutants_are_refused_or_read_right(target: str) -> None:
    tally = fuzz(target, 100_000, QUICK[target])
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.counts["refused"] > QUICK[target] // 2
    assert tally.counts.total() == QUICK[target]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_hostile_mutants_are_refused_or_read_right(target: str, record_property: Callable[[str, object], None]) -> None:
    tally = fuzz(target, 0, MANY)
    for kind, count in tally.counts.items():
        record_property(kind, count)
    record_property("mutants", tally.counts.total())
    assert not tally.faults, "\n".join(tally.faults)
