"""A checkpoint of any layout is the same state on any other: bit for bit, and the next step's loss within 1e-6."""

import pytest
from resume_grid import all_pairs, check_pairs, few_pairs


def check(folder, pairs, timeout_s):
    problems = check_pairs(folder, pairs, timeout_s)
    assert not problems, f"{len(problems)} of {len(pairs)}\n" + "\n".join(problems)
    return len(pairs)


def test_checkpoint_resumes_on_another_layout_bit_for_bit(tmp_path, record_property):
    record_property("pairs", check(tmp_path, few_pairs(), 120))


@pytest.mark.slow
def test_checkpoint_of_every_layout_resumes_on_every_other_bit_for_bit(tmp_path, record_property):
    record_property("pairs", check(tmp_path, all_pairs(), 1800))
