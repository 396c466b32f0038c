"""Each rule gives the same bits as transformers' processor of that name."""

import pytest
import torch
from transformers.generation import logits_process as reference

from modelzoo.generation.score_rules import ScoreRules, keep_min_p, keep_top_k, keep_top_p, penalise_repetition
from modelzoo.generation.settings import GenerationSettings

IDS = torch.tensor([[3, 5, 5, 9], [0, 1, 2, 49], [7, 7, 7, 7]])


def scores(spread: float = 3.0) -> torch.Tensor:
    drawn = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * spread
    drawn[0, :6] = drawn[0, 0]  # ties
    drawn[1, 10:20] = float("-inf")
    return drawn


@pytest.mark.parametrize("count", [1, 2, 7, 49, 50, 51, 1000])
def test_top_k_is_that_of_transformers(count):
    assert torch.equal(keep_top_k(scores(), count), reference.TopKLogitsWarper(count)(IDS, scores()))


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_top_p_is_that_of_transformers(share, spread):
    assert torch.equal(keep_top_p(scores(spread), share), reference.TopPLogitsWarper(share)(IDS, scores(spread)))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_min_p_is_that_of_transformers(share, spread):
    assert torch.equal(keep_min_p(scores(spread), share), reference.MinPLogitsWarper(share)(IDS, scores(spread)))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.8])
def test_repetition_penalty_is_that_of_transformers(penalty):
    expected = reference.RepetitionPenaltyLogitsProcessor(penalty)(IDS, scores())
    assert torch.equal(penalise_repetition(scores(), IDS, penalty), expected)


def test_repetition_penalty_does_not_count_padding():
    history = IDS.clone()
    history[1, :2] = 50
    expected = reference.RepetitionPenaltyLogitsProcessor(1.8, prompt_ignore_length=torch.tensor([0, 2, 0]))(IDS, scores())
    assert torch.equal(penalise_repetition(scores(), history, 1.8), expected)


def test_no_end_token_comes_before_the_least_length():
    rules = ScoreRules(GenerationSettings(min_new_tokens=3), (4, 9), torch.device("cpu"))
    expected = reference.MinNewTokensLengthLogitsProcessor(4, 3, [4, 9])(torch.zeros(3, 6, dtype=torch.long), scores())
    assert torch.equal(rules(scores(), IDS, 2), expected)
    assert torch.equal(rules(scores(), IDS, 3), scores())


def test_rules_come_in_the_order_of_transformers():
    settings = GenerationSettings(
        do_sample=True, temperature=1.7, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.3, min_new_tokens=9
    )
    expected = scores()
    for processor in (
        reference.RepetitionPenaltyLogitsProcessor(1.3),
        reference.MinNewTokensLengthLogitsProcessor(4, 9, [4]),
        reference.TemperatureLogitsWarper(1.7),
        reference.TopKLogitsWarper(20),
        reference.TopPLogitsWarper(0.8),
        reference.MinPLogitsWarper(0.1),
    ):
        expected = processor(IDS, expected)
    assert torch.equal(ScoreRules(settings, (4,), torch.device("cpu"))(scores(), IDS, 0), expected)


def test_without_sampling_its_rules_do_nothing():
    assert torch.equal(ScoreRules(GenerationSettings(), (4,), torch.device("cpu"))(scores(), IDS, 0), scores())
