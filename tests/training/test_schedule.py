import pytest
import torch
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from modelzoo.errors import ConfigError
from modelzoo.training.schedule import lr_at, warmup_steps


def reference(make, warmup, total, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = make(optimizer, num_warmup_steps=warmup, **options)
    rates = []
    for _ in range(total + 1):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 4, 11])
@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_rates_are_those_of_transformers_one_step_earlier_in_warmup(name, warmup):
    total = 12
    make = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}.get(
        name, get_constant_schedule_with_warmup
    )
    theirs = reference(make, warmup, total, **({} if name == "constant" else {"num_training_steps": total}))
    for step in range(total):
        ours = lr_at(step, total, peak=0.5, name=name, warmup=warmup)
        assert ours == pytest.approx(theirs[step + 1 if step < warmup else step], abs=1e-12)


def test_noam_is_the_formula_of_the_paper_scaled_to_its_peak():
    warmup, width = 10, 64
    paper = [width**-0.5 * min(s**-0.5, s * warmup**-1.5) for s in range(1, 41)]
    ours = [lr_at(step, 40, peak=max(paper), name="noam", warmup=warmup) for step in range(40)]
    assert ours == pytest.approx(paper)


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "noam"])
@pytest.mark.parametrize("warmup", [0, 0.1, 3])
def test_no_step_has_a_zero_rate_and_none_exceeds_the_peak(name, warmup):
    rates = [lr_at(step, 20, peak=2.0, name=name, warmup=warmup) for step in range(20)]
    assert all(0 < rate <= 2.0 for rate in rates)
    assert max(rates) == 2.0
    rise = warmup_steps(warmup, 20)
    assert rates[:rise] == sorted(rates[:rise])
    assert rates[rise:] == sorted(rates[rise:], reverse=True)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_final_ratio_is_where_the_rate_ends(name):
    assert lr_at(20, 20, peak=2.0, name=name, final_ratio=0.25) == pytest.approx(0.5)
    assert lr_at(0, 20, peak=2.0, name=name, final_ratio=0.25) == 2.0


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "noam"])
def test_run_of_one_step_takes_it_at_the_peak(name):
    assert lr_at(0, 1, peak=0.1, name=name) == 0.1
    assert lr_at(0, 1, peak=0.1, name=name, warmup=1) == 0.1


def test_warmup_longer_than_the_run_only_rises():
    rates = [lr_at(step, 4, peak=1.0, warmup=8) for step in range(4)]
    assert rates == [0.125, 0.25, 0.375, 0.5]


def test_warmup_fraction_is_rounded_up():
    assert [warmup_steps(w, 25) for w in (0, 0.1, 0.5, 1, 7)] == [0, 3, 13, 1, 7]


def test_unknown_shape_is_refused():
    with pytest.raises(ConfigError, match=r"schedule.name='wsd' is not known"):
        lr_at(0, 1, peak=1.0, name="wsd")
