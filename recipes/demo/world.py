"""The small harbour town that the demo's texts are about: its words, and what a kind of fact is.

A sentence pattern has the slots {k} (what the fact is about), {v} (its value), {w} (another value, which does not hold), and in
presents {o} (what was given). patterns.py has the patterns, make_data.py turns them
into passages and questions.
"""

from __future__ import annotations

from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """The words of `text`."""
    return tuple(text.split())


PEOPLE = words(
    "Anna Bram Clara David Edda Finn Greta Hugo Ida Jonas Karin Lars Maud Nils Olga Piet Runa Simon Tilda Ulf Vera "
    "Willem Agnes Boris"
)
THINGS = words(
    "lamp net anchor kettle ladder rope bell map key basket barrel compass lantern saw hammer bucket telescope blanket "
    "teapot violin kite clock mirror chest"
)
PAINTED = words("door gate boat cart bench fence shed hut wagon raft sledge kiosk pump chair")
PLACES = words("lighthouse chapel mill smithy bakery school inn library boathouse station museum dairy brewery stable barn attic")
COLOURS = words("red blue green yellow white black grey brown orange pink")
JOBS = words("baker smith teacher sailor carpenter doctor painter gardener miller fisher clerk cook")
ANIMALS = words("goat cat dog parrot pony hen goose rabbit tortoise donkey duck sheep")
FOODS = words("tea coffee cocoa soup plums pears cheese honey herring bread cider porridge")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
BOATS = words("Heron Petrel Gannet Otter Swan Puffin Dolphin Comet Tern Marlin Swallow Beacon")
ISLANDS = words("Holm Skarn Tarva Lund Birka Fenno Rostock Vesper Mossy Gull")
GOODS = words("candle loaf brush ribbon notebook spoon button napkin lemon pillow whistle stamp")
NUMBERS = words("two three four five six seven eight nine ten")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fact: a key, its value, and the ways to say and to ask it.

    Args:
        name: the kind's name.
        keys: what the facts are about.
        values: what may be said of them; empty for an ordering, where the value is another key.
        says: sentences that state the fact.
        contrasts: sentences that state it and deny {w}, or give {w} as what held before.
        asks: yes/no questions whose answer is yes when the fact holds.
        wh: open questions, each with its short answer, separated by "|".
    """

    name: str
    keys: tuple[str, ...]
    values: tuple[str, ...] = ()
    says: tuple[str, ...]
    contrasts: tuple[str, ...] = ()
    asks: tuple[str, ...]
    wh: tuple[str, ...] = ()


SCENES = (
    "It rained all morning.",
    "The wind came from the west.",
    "The harbour was quiet.",
    "Gulls sat on every roof.",
    "There was fog over the water.",
    "The tide was low.",
    "In the evening the lights went on one by one.",
    "It was the first warm day of the year.",
    "Nobody was in a hurry.",
    "The sea was calm and the sky was clear.",
    "Snow lay on the quay.",
    "Children played on the sand.",
    "The whole town smelled of smoke and salt.",
    "A letter had come with the morning mail.",
    "It was market day, and the streets were full.",
    "At noon everybody went home to eat.",
    "The old people sat in the sun and talked.",
    "Much had changed in the town since the storm.",
    "Not much happens here in winter.",
    "There was music in the square that night.",
    "The summer guests had left.",
    "A stranger would not notice any of this.",
)
JOINS = ("{a}, and {b}", "{a}, while {b}", "{a}, but {b}", "{a}; {b}")
