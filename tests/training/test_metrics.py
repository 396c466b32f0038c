import math
import random

import pytest
import torch

from modelzoo.training.evaluation.answers import AnswerMetrics, answer_f1, normalise_answer
from modelzoo.training.evaluation.entities import count_entities, entities, is_entity_scheme
from modelzoo.training.evaluation.metrics import (
    ClassificationMetrics,
    LossMetrics,
    TokenMetrics,
    is_better,
    majority_share,
)


def naive_f1(predictions, labels, label):
    right = sum(p == label == t for p, t in zip(predictions, labels, strict=True))
    precision = right / max(sum(p == label for p in predictions), 1)
    recall = right / max(sum(t == label for t in labels), 1)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def naive_mcc(predictions, labels):
    """Pearson correlation of the one-hot forms (Gorodkin 2004)."""
    classes = range(max(*predictions, *labels) + 1)
    x = torch.tensor([[float(p == c) for c in classes] for p in predictions], dtype=torch.float64)
    y = torch.tensor([[float(t == c) for c in classes] for t in labels], dtype=torch.float64)
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt())


@pytest.mark.parametrize("num_labels", [2, 3, 5])
def test_classification_metrics_are_the_naive_ones(num_labels):
    generator = random.Random(num_labels)
    labels = [generator.randrange(num_labels) for _ in range(60)]
    predictions = [generator.choice([label, generator.randrange(num_labels)]) for label in labels]
    metrics = ClassificationMetrics(num_labels)
    for start in range(0, 60, 7):
        metrics.update(torch.tensor(predictions[start : start + 7]), torch.tensor(labels[start : start + 7]))
    values = metrics.values()
    assert values["accuracy"] == sum(p == t for p, t in zip(predictions, labels, strict=True)) / 60
    scores = [naive_f1(predictions, labels, label) for label in range(num_labels)]
    assert values["f1"] == pytest.approx(scores[1] if num_labels == 2 else sum(scores) / num_labels, abs=1e-12)
    assert values["mcc"] == pytest.approx(naive_mcc(predictions, labels), abs=1e-12)
    assert metrics.majority() == max(labels.count(label) for label in range(num_labels)) / 60


def test_counts_of_parts_add_up_to_the_whole():
    whole, first, second = (ClassificationMetrics(3) for _ in range(3))
    predictions, labels = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([0, 2, 2, 1, -100])
    whole.update(predictions, labels)
    first.update(predictions[:2], labels[:2])
    second.update(predictions[2:], labels[2:])
    first.counts = [a + b for a, b in zip(first.counts, second.counts, strict=True)]
    assert first.values() == whole.values()


def test_one_sided_predictions_have_no_correlation():
    metrics = ClassificationMetrics(2)
    metrics.update(torch.tensor([1, 1, 1]), torch.tensor([0, 1, 1]))
    assert metrics.values() == {"accuracy": 2 / 3, "f1": 0.8, "mcc": 0.0}


def test_no_samples_have_no_value():
    assert all(math.isnan(value) for value in ClassificationMetrics(2).values().values())
    assert math.isnan(LossMetrics().values()["loss"])
    assert math.isnan(majority_share([0, 0]))
    assert math.isnan(AnswerMetrics().values()["f1"])


def test_loss_is_the_mean_over_targets_not_over_batches():
    metrics = LossMetrics()
    metrics.update(1.0, 6)
    metrics.update(4.0, 2)
    metrics.update(math.nan, 0)
    assert metrics.values() == {"loss": 1.75, "perplexity": pytest.approx(math.exp(1.75))}


def test_perplexity_of_a_huge_loss_is_infinite():
    metrics = LossMetrics()
    metrics.update(1000.0, 1)
    assert metrics.values()["perplexity"] == math.inf


def test_entities_follow_the_conll_rules():
    labels = ["B-PER", "I-PER", "O", "I-LOC", "I-LOC", "B-LOC", "I-PER", "B-PER", "B-PER"]
    assert list(entities(labels)) == [
        ("PER", 0, 2),
        ("LOC", 3, 5),
        ("LOC", 5, 6),
        ("PER", 6, 7),
        ("PER", 7, 8),
        ("PER", 8, 9),
    ]
    assert count_entities(["B-PER", "O", "B-LOC"], ["B-PER", "I-PER", "B-LOC"]) == (1, 2, 2)


def test_entity_forms_are_recognised():
    assert is_entity_scheme(["O", "B-PER", "I-PER"])
    assert not is_entity_scheme(["NOUN", "VERB"])
    assert not is_entity_scheme(["O", "PER"])
    assert not is_entity_scheme(["O", "B-"])


def test_token_metrics_count_whole_entities():
    names = ["O", "B-PER", "I-PER"]
    metrics = TokenMetrics(names)
    labels = torch.tensor([[-100, 1, 2, 0, 1, -100], [-100, 0, 0, 1, -100, -100]])
    predictions = torch.tensor([[1, 1, 2, 0, 0, 2], [0, 0, 1, 1, 0, 0]])
    metrics.update(predictions, labels)
    other = TokenMetrics(names)
    other.counts = metrics.counts
    expected = {"accuracy": 5 / 7, "f1": pytest.approx(2 / 3), "precision": pytest.approx(2 / 3), "recall": pytest.approx(2 / 3)}
    assert metrics.values() == expected
    assert other.values() == expected
    assert metrics.majority() == 3 / 7


def test_token_metrics_of_other_labels_are_macro_over_tokens():
    metrics = TokenMetrics(["NOUN", "VERB", "DET"])
    metrics.update(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, -100]]))
    assert metrics.values() == {"accuracy": 1.0, "f1": pytest.approx(2 / 3)}


def test_answers_are_compared_as_in_squad():
    assert normalise_answer("The  Eiffel-Tower, a tower!") == "eiffeltower tower"
    assert answer_f1("the big tower", "Tower") == pytest.approx(2 / 3)
    assert answer_f1("", "") == 1.0
    assert answer_f1("", "x") == 0.0
    metrics = AnswerMetrics()
    metrics.update("Paris, France", ["Paris", "in Paris France"])
    metrics.update("the Paris", ["Paris"])
    metrics.update("Rome", [])
    assert metrics.values() == {"exact_match": pytest.approx(1 / 3), "f1": pytest.approx((0.8 + 1) / 3)}


def test_better_is_smaller_for_losses_and_larger_otherwise():
    assert is_better("accuracy", 0.6, None)
    assert is_better("accuracy", 0.6, 0.5)
    assert not is_better("accuracy", 0.5, 0.5)
    assert is_better("loss", 0.4, 0.5)
    assert not is_better("perplexity", 2.0, 1.5)
    assert not is_better("loss", math.nan, 0.5)
