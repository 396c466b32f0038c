"""Damaged and hostile versions of a file: flipped bits, cuts, and values of JSON or YAML that nobody would write."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["CANARY", "mutated_bytes", "mutated_header", "mutated_json", "mutated_values"]

CANARY = "canary.safetensors"
"""Name of a file beside the folder; nothing may open it."""

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**40, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e-300, 1e308,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", "x", "\0", "../" + CANARY, "../../../../../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "a\\b", "ü汉\U0001f600",
    "\ud800", "-1", "1e999", "true", "null", "%s%n{0}", "x" * 5000, "(a+)+$", "__class__", "../" * 50,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [0] * 3000, {"x": {"y": {"z": 1}}})


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return the content with bits flipped, a part cut out, doubled, overwritten or inserted, or its end cut off."""
    raw = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at, length = draw.randrange(len(raw) + 1), draw.choice((1, 2, 4, 8, 64))
        kind = draw.randrange(6)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            del raw[at : at + length]
        elif kind == 3:
            raw[at:at] = raw[at : at + length]
        elif kind == 4:
            raw[at : at + length] = draw.choice((b"\xff", b"\0", b"9", b"[", b'"')) * length
        else:
            raw[at:at] = draw.randbytes(length)
    return bytes(raw)


def mutated_values(values: Any, draw: random.Random) -> Any:
    """Return JSON values with one to three of them replaced, removed, renamed, doubled or exchanged."""
    changed = {"": json.loads(json.dumps(values))}
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(changed[""], changed, ""))
        # what lies deep is no more likely than what lies on top
        depths = sorted({depth for _, _, depth in places})
        depth = draw.choice(depths)
        container, key, _ = draw.choice([place for place in places if place[2] == depth])
        _change(container, key, draw)
    return changed[""]


def _places(value: Any, container: Any, key: Any, depth: int = 0) -> Any:
    yield container, key, depth
    if isinstance(value, dict | list):
        for inner in list(value) if isinstance(value, dict) else range(min(len(value), 50)):
            yield from _places(value[inner], value, inner, depth + 1)


def _change(container: Any, key: Any, draw: random.Random) -> None:
    old = container[key]
    kind = draw.randrange(8)
    if kind == 0 and key != "":
        del container[key]
    elif kind == 1 and isinstance(container, dict) and key != "":
        container[draw.choice((*TEXTS, *(str(name) for name in container)))] = container.pop(key)
    elif kind == 2 and isinstance(old, int | float) and not isinstance(old, bool):
        container[key] = draw.choice((old + 1, old - 1, -old, old * 2, str(old), [old], float(old), old / 2))
    elif kind == 3 and isinstance(old, list) and old:
        container[key] = draw.choice((old * 2, old[:-1], old[::-1], [*old, old[0]], old[0]))
    elif kind == 4 and isinstance(container, dict) and len(container) > 1:
        container[key] = copy.deepcopy(container[draw.choice(list(container))])
    elif kind == 5:
        container[key] = draw.choice(TEXTS)
    elif kind == 6:
        container[key] = draw.choice(NUMBERS)
    else:
        container[key] = copy.deepcopy(draw.choice(OTHERS))


def mutated_json(content: bytes, draw: random.Random, sealed: Callable[[Any], Any] = lambda values: values) -> bytes:
    """Return a JSON file that is hostile in its bytes or in its values.

    Args:
        content: The file.
        draw: Decides.
        sealed: Puts what vouches for the values (a checksum) right again.
    """
    if draw.random() < 0.25:
        return mutated_bytes(content, draw)
    values = mutated_values(json.loads(content), draw)
    if isinstance(values, dict) and draw.random() < 0.9:
        values = sealed(values)
    text = json.dumps(values)
    kind = draw.randrange(40)
    if kind == 0:
        text = text.replace("{", '{"a":1,"a":2,', 1)
    elif kind == 1:
        text = text.replace(":", ":" + "[" * 100_000 + "]" * 100_000 + ',"b":', 1)
    elif kind == 2:
        text = text.replace(":", ":" + "9" * 5000 + ',"b":', 1)
    return text.encode("utf-8", "surrogatepass")


def mutated_header(content: bytes, draw: random.Random) -> bytes:
    """Return a safetensors file whose header is hostile, or its bytes anywhere."""
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    kind = draw.randrange(8)
    if kind == 0:
        return mutated_bytes(content, draw)
    if kind == 1:
        return mutated_bytes(content[: 8 + length], draw) + rest
    text = mutated_json(header, draw)
    size = draw.choice((0, 1, len(text) - 1, len(text) + 1, 2**31, 2**63, 2**64 - 1)) if kind == 2 else len(text)
    return size.to_bytes(8, "little") + text + rest
