"""Entities in label sequences of the BIO forms (B-PER I-PER O), counted as the CoNLL shared tasks do."""

from collections.abc import Iterator, Sequence

__all__ = ["count_entities", "entities", "is_entity_scheme"]


def is_entity_scheme(label_names: Sequence[str]) -> bool:
    """Whether labels are of a BIO form: O, and B- or I- before the kind of an entity."""
    return "O" in label_names and all(name == "O" or (name[:2] in {"B-", "I-"} and len(name) > 2) for name in label_names)


def entities(labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Give kind, first place and the place after the last of each entity.

    An I- that follows no entity of its kind begins one, as in the CoNLL evaluation script.
    """
    kind, start = "", 0
    for place, label in enumerate([*labels, "O"]):
        mark, _, name = label.partition("-")
        if kind and (mark != "I" or name != kind):
            yield kind, start, place
            kind = ""
        if mark in {"B", "I"} and not kind:
            kind, start = name, place


def count_entities(predicted: Sequence[str], true: Sequence[str]) -> tuple[int, int, int]:
    """Return how many entities are right, predicted and true."""
    found, expected = set(entities(predicted)), set(entities(true))
    return len(found & expected), len(found), len(expected)
