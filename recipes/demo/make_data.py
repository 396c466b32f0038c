"""Compose the demo's BoolQ-form rows (data/train.jsonl, data/validation.jsonl) from the patterns in world.py.

Every question stands twice, once with a passage that makes it true and once with one that makes it false. The two
passages hold the same facts with two values exchanged, so neither the question, nor the passage, nor the words that
they share tell the answer: it has to be read.

    python recipes/demo/make_data.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

from modelzoo.recipes.demo.patterns import KINDS
from modelzoo.recipes.demo.world import JOINS, SCENES, THINGS, Kind, words

SEED = 2
TRAIN_QUESTIONS = 180
VALIDATION_QUESTIONS = 80
# First words that lose their capital inside a sentence; names and days keep theirs.
STARTS = words("The A In On For To You It If They Somebody Nobody Some Many Every Anyone At There Bring Give Nothing From With")

Asked = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class Fact:
    """One statement about the town.

    Args:
        kind: the kind of fact.
        key: what it is about.
        value: what holds.
        other: a value that does not hold, for a sentence that says so; None for a plain sentence.
        thing: what was given, in presents.
    """

    kind: Kind
    key: str
    value: str
    other: str | None = None
    thing: str = ""

    @property
    def slots(self) -> dict[str, str]:
        """The words for the pattern's slots."""
        return {"k": self.key, "v": self.value, "w": self.other or "", "o": self.thing}

    def sentence(self, rng: random.Random) -> str:
        """State the fact by one of its patterns."""
        patterns = self.kind.says if self.other is None else self.kind.contrasts
        return capitalised(rng.choice(patterns).format(**self.slots))


@dataclass(frozen=True)
class Story:
    """The facts of one passage; the first is the one that decides, with `rival`'s value as the other candidate.

    Args:
        fact: the deciding fact.
        rival: a fact of the same kind with the competing value, or None where `fact` itself names it.
        others: further facts.
    """

    fact: Fact
    rival: Fact | None
    others: tuple[Fact, ...]

    @property
    def decoy(self) -> str:
        """The value that the passage names and that is not the fact's."""
        if not self.fact.kind.values:
            return self.fact.key
        decoy = self.fact.other or (self.rival.value if self.rival else None)
        assert decoy is not None, "a story names a competing value"
        return decoy

    def exchanged(self) -> Story:
        """The same story with the two competing values exchanged."""
        fact = self.fact
        if not fact.kind.values:
            return replace(self, fact=replace(fact, key=fact.value, value=fact.key))
        if fact.other is not None:
            return replace(self, fact=replace(fact, value=fact.other, other=fact.value))
        assert self.rival is not None, "a plain fact has a rival"
        return replace(self, fact=replace(fact, value=self.rival.value), rival=replace(self.rival, value=fact.value))

    def passage(self, rng: random.Random, *, is_bare: bool = False) -> str:
        """Tell the facts in some order, with a sentence about the day now and then, unless it `is_bare`."""
        facts = [self.fact, *([self.rival] if self.rival else []), *self.others]
        rng.shuffle(facts)
        sentences = [fact.sentence(rng) for fact in facts]
        if len(sentences) > 1 and rng.random() < 0.4:
            sentences[:2] = [joined(sentences[0], sentences[1], rng)]
        for _ in range(0 if is_bare else rng.choice((0, 1, 1))):
            sentences.insert(rng.randrange(len(sentences) + 1), rng.choice(SCENES))
        return " ".join(sentences)


def capitalised(text: str) -> str:
    """Text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def joined(first: str, second: str, rng: random.Random) -> str:
    """Two sentences as one where both are short; else as they are."""
    if ". " in first or ". " in second:
        return f"{first} {second}"
    start, _, rest = second.partition(" ")
    second = f"{start.lower()} {rest}" if start in STARTS else second
    return rng.choice(JOINS).format(a=first[:-1], b=second)


def draw_story(kind: Kind, num_others: int, rng: random.Random) -> Story:
    """A random story whose deciding fact is of `kind`.

    Args:
        kind: the deciding fact's kind.
        num_others: how many further facts it tells, 0 or more.
        rng: the source of chance.
    """
    thing = rng.choice(THINGS)
    if not kind.values:
        key, value = rng.sample(kind.keys, 2)
        fact, rival = Fact(kind, key, value, thing=thing), None
    else:
        key, key2 = rng.sample(kind.keys, 2)
        value, value2 = rng.sample(kind.values, 2)
        if rng.random() < 0.35:
            fact, rival = Fact(kind, key, value, other=value2), None
        else:
            fact, rival = Fact(kind, key, value), Fact(kind, key2, value2)
    kinds = rng.sample([k for k in KINDS if k is not kind], num_others)
    return Story(fact, rival, tuple(draw_fact(k, {value, fact.key}, rng) for k in kinds))


def draw_fact(kind: Kind, taken: set[str], rng: random.Random) -> Fact:
    """A random fact of `kind` that shares no value with `taken` (a shared key is welcome)."""
    key = rng.choice(kind.keys)
    pool = [v for v in kind.values or kind.keys if v not in taken and v != key]
    value, other = rng.sample(pool, 2)
    if not kind.values:
        return Fact(kind, key, value, thing=rng.choice(THINGS))
    return Fact(kind, key, value, other=other if rng.random() < 0.25 else None)


def draw_question(fact: Fact, rng: random.Random) -> str:
    """A yes/no question that the fact answers with yes."""
    return capitalised(rng.choice(fact.kind.asks).format(**fact.slots))


def asked(fact: Fact) -> Asked:
    """What a question about `fact` asks, whatever its wording and direction."""
    return fact.kind.name, frozenset((fact.key, fact.value))


def compose() -> tuple[list[dict[str, object]], list[dict[str, object]], set[Asked]]:
    """Draw the demo's rows, the same every time.

    Returns:
        the rows of train.jsonl, those of validation.jsonl, and what their questions ask, which make_model.py never asks.
    """
    rng = random.Random(SEED)
    taken: set[Asked] = set()
    splits: list[list[dict[str, object]]] = []
    for num_questions in (TRAIN_QUESTIONS, VALIDATION_QUESTIONS):
        rows: list[dict[str, object]] = []
        while len(rows) < 2 * num_questions:
            kind = KINDS[len(rows) // 2 % len(KINDS)]
            story = draw_story(kind, rng.choice((1, 1, 2)), rng)
            if asked(story.fact) in taken:
                continue
            taken.add(asked(story.fact))
            question = draw_question(story.fact, rng)
            rows.append({"question": question, "passage": story.passage(rng), "label": True})
            rows.append({"question": question, "passage": story.exchanged().passage(rng), "label": False})
        rng.shuffle(rows)
        splits.append([{**row, "idx": idx} for idx, row in enumerate(rows)])
    return splits[0], splits[1], taken


def write(folder: Path) -> None:
    """Write train.jsonl and validation.jsonl into `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("train", "validation"), compose()[:2], strict=True):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
        print(f"{folder / name}.jsonl: {len(rows)} rows")


def main() -> None:
    """Write the two files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data", help="folder to write into")
    write(parser.parse_args().output)


if __name__ == "__main__":
    main()
