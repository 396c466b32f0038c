"""The texts that the demo's model is pretrained on: questions, answers and retellings of a passage, then the passage.

They are drawn from the same town as the demo's rows and never ask what a row asks.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from modelzoo.recipes.demo.make_data import Asked, Fact, Story, asked, capitalised, draw_question, draw_story
from modelzoo.recipes.demo.patterns import KINDS

# How often a token is hidden: an answer, a word of a retelling, any other word of the first part, a word of the passage.
ANSWER, RETELLING, QUESTION, PASSAGE = 0.8, 0.4, 0.08, 0.12
Piece = tuple[str, float]  # some text and how often its tokens are hidden


@dataclass(frozen=True)
class Text:
    """One training text.

    Args:
        pieces: the first part, in pieces with their rates of hiding.
        passage: the second part.
    """

    pieces: tuple[Piece, ...]
    passage: str

    @property
    def first_part(self) -> str:
        """The first part as one string."""
        return "".join(text for text, _ in self.pieces)

    @property
    def questions(self) -> list[str]:
        """The questions of the first part."""
        return [text.strip() for text, _ in self.pieces if text.endswith("? ")]

    def rate_at(self, offset: int) -> float:
        """How often the first part's token that starts at character `offset` is hidden."""
        for text, rate in self.pieces:
            if offset < len(text):
                return rate
            offset -= len(text)
        raise IndexError(f"offset lies {offset} characters behind the text")


def told_and_false(story: Story, rng: random.Random) -> list[tuple[Fact, Fact]]:
    """The story's competing facts, each with a false one: the one that the passage tempts one to believe, if it does."""
    fact = story.fact
    if not fact.kind.values:
        return [(fact, replace(fact, key=fact.value, value=fact.key))]
    if story.rival is None and fact.other is None:
        return [(fact, replace(fact, value=rng.choice([value for value in fact.kind.values if value != fact.value])))]
    pairs = [(replace(fact, other=None), replace(fact, value=story.decoy, other=None))]
    if story.rival is not None:
        pairs.append((story.rival, replace(story.rival, value=fact.value)))
    return pairs


def open_question(fact: Fact, rng: random.Random) -> list[Piece]:
    """A question with its short answer."""
    question, answer = rng.choice(fact.kind.wh).format(**fact.slots).split("|")
    return [(question + " ", QUESTION), (capitalised(answer), ANSWER)]


def draw_item(told: Fact, false: Fact, taken: Collection[Asked], rng: random.Random) -> list[Piece]:
    """One question, verdict or retelling about a fact; empty where it would ask what a demo row asks."""
    chance = rng.random()
    is_true = rng.random() < 0.5
    fact = told if is_true else false
    if chance < 0.6:
        if asked(fact) in taken:
            return []
        reason = f": {told.sentence(rng)}" if rng.random() < 0.35 else "."
        verdict = [(draw_question(fact, rng) + " ", QUESTION), ("Yes" if is_true else "No", ANSWER), (reason, QUESTION)]
        return [*open_question(told, rng), (" ", QUESTION), *verdict] if rng.random() < 0.3 else verdict
    if chance < 0.7:
        return [(rng.choice(("Right", "True") if is_true else ("Wrong", "False")), ANSWER), (f": {fact.sentence(rng)}", QUESTION)]
    if chance < 0.9:
        return open_question(told, rng)
    return [(told.sentence(rng), RETELLING)]


def draw_text(taken: Collection[Asked], rng: random.Random, stage: int = 2) -> Text:
    """A random text.

    Args:
        taken: what must not be asked.
        rng: the source of chance.
        stage: 0 for one item about one or two bare facts, 1 for more items, 2 for further facts and sentences as in the rows.
    """
    while True:
        story = draw_story(rng.choice(KINDS), rng.choice((0, 1, 1, 2)) if stage == 2 else 0, rng)
        if rng.random() < (0.4, 0.3, 0.1)[stage]:
            story = replace(story, fact=replace(story.fact, other=None), rival=None)
        pairs = told_and_false(story, rng)
        items = [draw_item(*rng.choice(pairs), taken, rng) for _ in range(rng.choice((1, 2, 2)) if stage else 1)]
        if story.others and rng.random() < 0.3:
            items.insert(rng.randrange(len(items) + 1), open_question(replace(story.others[0], other=None), rng))
        pieces = [piece for item in items if item for piece in (*item, (" ", QUESTION))]
        if pieces:
            return Text(tuple(pieces[:-1]), story.passage(rng, is_bare=stage < 2))
