"""Exact match and F1 of extracted answers, by the rules of SQuAD (Rajpurkar et al. 2016, the official evaluation script)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

__all__ = ["AnswerMetrics", "answer_f1", "normalise_answer"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = set(string.punctuation)


class AnswerMetrics:
    """Mean exact match and F1 over questions; each is the best over a question's true answers."""

    def __init__(self) -> None:
        self.counts = [0.0, 0.0, 0.0]

    def update(self, predicted: str, answers: Sequence[str]) -> None:
        """Add a question.

        Args:
            predicted: The answer found; empty for none.
            answers: The true ones; none, or an empty text, where the question has no answer.
        """
        true = list(answers) or [""]
        self.counts[0] += max(float(normalise_answer(predicted) == normalise_answer(answer)) for answer in true)
        self.counts[1] += max(answer_f1(predicted, answer) for answer in true)
        self.counts[2] += 1

    def values(self) -> dict[str, float]:
        """Return `exact_match` and `f1` as shares of 1; NaN without any question."""
        exact, f1, count = self.counts
        return {"exact_match": exact / count if count else float("nan"), "f1": f1 / count if count else float("nan")}


def normalise_answer(text: str) -> str:
    """Return an answer in lower case without punctuation, articles and extra spaces."""
    plain = "".join(letter for letter in text.lower() if letter not in PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", plain).split())


def answer_f1(predicted: str, answer: str) -> float:
    """Return the F1 over the words of two normalised answers; 1 where both are empty."""
    found, true = normalise_answer(predicted).split(), normalise_answer(answer).split()
    if not found or not true:
        return float(found == true)
    common = sum((Counter(found) & Counter(true)).values())
    return 2 * common / (len(found) + len(true))
