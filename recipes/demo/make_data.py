"""Composes the demo's questions and passages from the sentences of world.py, the same bytes every time.

    python recipes/demo/make_data.py

Each question stands twice, under a passage in which its subject went well and under one in which it went badly, so that the
question alone says nothing. The sentences that decide a validation row stand in no training row.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from modelzoo.recipes.demo.world import NEUTRAL, NUM_TRAINING_SENTENCES, OPENINGS, QUESTIONS, SENTENCES, WORDS

__all__ = ["Mood", "Row", "compose", "fill", "sentences"]

Row = dict[str, str | bool | int]
Mood = Literal["good", "bad"]
Split = Literal["train", "validation"]

_PAIRS: dict[Split, int] = {"train": 180, "validation": 80}
_SEED = 77


def fill(pattern: str, rng: random.Random) -> str:
    """Return a sentence with its slots filled and its first letter capital, without the full stop."""
    text = pattern.format(**{slot: rng.choice(words) for slot, words in WORDS.items()})
    return text[0].upper() + text[1:]


def sentences(subject: str, mood: Mood, count: int, rng: random.Random, *, split: Split | None = None) -> list[str]:
    """Draw sentences about a subject.

    Args:
        subject: A key of SENTENCES.
        mood: How it went.
        count: How many different ones.
        rng: The source of chance.
        split: Whose sentences; None for all of them.
    """
    pool: Sequence[str] = SENTENCES[subject][mood]
    if split is not None:
        pool = pool[:NUM_TRAINING_SENTENCES] if split == "train" else pool[NUM_TRAINING_SENTENCES:]
    return [fill(pattern, rng) for pattern in rng.sample(pool, count)]


def _passage(subject: str, mood: Mood, split: Split, rng: random.Random) -> str:
    told = [*sentences(subject, mood, 3, rng, split=split), fill(rng.choice(NEUTRAL), rng)]
    rng.shuffle(told)
    return " ".join(f"{sentence}." for sentence in (fill(rng.choice(OPENINGS), rng), *told))


def compose(split: Split) -> Iterator[Row]:
    """Return the rows of a split, in BoolQ's form."""
    rng = random.Random(f"{_SEED} {split}")
    for pair in range(_PAIRS[split]):
        subject = rng.choice(sorted(SENTENCES))
        question = fill(rng.choice(QUESTIONS[subject]), rng) + "?"
        moods: list[Mood] = ["good", "bad"]
        rng.shuffle(moods)
        for position, mood in enumerate(moods):
            passage = _passage(subject, mood, split, rng)
            yield {"question": question, "passage": passage, "label": mood == "good", "idx": 2 * pair + position}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data", help="folder to write")
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for split in _PAIRS:
        text = "".join(json.dumps(row) + "\n" for row in compose(split))
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
