"""A line of a family's table of tensor names: our names, Hugging Face's names, and the operation between them."""

import re
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from torch import Tensor

from modelzoo.converters.ops import Copy, Operation

__all__ = ["Group", "Rule", "bindings_of", "modules", "names_of", "placeholders_of"]

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_NUMBER = r"(0|[1-9][0-9]{0,5})"


def placeholders_of(pattern: str) -> tuple[str, ...]:
    """Return the names of a pattern's placeholders, in order."""
    return tuple(_PLACEHOLDER.findall(pattern))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Turn a name with placeholders into an expression whose groups carry the placeholders' names."""
    parts = _PLACEHOLDER.split(pattern)
    source = "".join(f"(?P<{part}>{_NUMBER})" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(source)


def _fill(pattern: str, bindings: MappingABC[str, int]) -> str:
    return _PLACEHOLDER.sub(lambda found: str(bindings[found.group(1)]), pattern)


def bindings_of(pattern: str, name: str) -> dict[str, int] | None:
    """Return the values of a pattern's placeholders when `name` is of that pattern, else None."""
    found = _compiled(pattern).fullmatch(name)
    return {key: int(value) for key, value in found.groupdict().items()} if found else None


def names_of(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True)
class Rule:
    """Our names, Hugging Face's names, and the operation from theirs to ours.

    Attributes:
        ours: One name or several, with placeholders such as `{layer}`.
        theirs: One name or several, with the same placeholders.
        op: The operation on theirs that gives ours; its inverse is derived.
        each: For a placeholder that stands on one side alone, such as `{expert}`, its count: the name stands for that many
            names, 0 to count - 1, in this order.
        is_optional: Whether a model of the family may lack these tensors: biases that a config switches on.
    """

    ours: str | tuple[str, ...]
    theirs: str | tuple[str, ...]
    op: Operation = field(default_factory=Copy)
    each: tuple[tuple[str, int], ...] = ()
    is_optional: bool = False

    def shared(self) -> tuple[str, ...]:
        """Return the placeholders that both sides carry, in order."""
        counted = dict(self.each)
        found = [key for name in names_of(self.ours) for key in placeholders_of(name) if key not in counted]
        return tuple(dict.fromkeys(found))

    def match(self, name: str, *, side: str) -> dict[str, int] | None:
        """Return the values of the shared placeholders when `name` is one of this rule's names on that side.

        Args:
            name: A tensor's full name.
            side: "ours" or "theirs".
        """
        for pattern in names_of(self.ours if side == "ours" else self.theirs):
            found = bindings_of(pattern, name)
            if found is not None and all(found.get(key, 0) < count for key, count in self.each):
                return {key: found[key] for key in self.shared()}
        return None

    def group(self, bindings: MappingABC[str, int]) -> "Group":
        """Return the names on both sides for these values of the shared placeholders."""
        return Group(self, self._filled(self.ours, bindings), self._filled(self.theirs, bindings))

    def _filled(self, patterns: str | tuple[str, ...], bindings: MappingABC[str, int]) -> tuple[str, ...]:
        names: list[str] = []
        for pattern in names_of(patterns):
            free = [(key, count) for key, count in self.each if key in placeholders_of(pattern)]
            for values in product(*(range(count) for _, count in free)):
                names.append(_fill(pattern, {**bindings, **{key: value for (key, _), value in zip(free, values, strict=True)}}))
        return tuple(names)


def modules(ours: str, theirs: str, op: Operation | None = None, *, is_bias_optional: bool = False) -> tuple[Rule, Rule]:
    """Return the rules of a module's weight and bias; `op` is for the weight, the bias is copied.

    Args:
        ours: Our name of the module.
        theirs: Hugging Face's name of it.
        op: Of the weight; None to copy it.
        is_bias_optional: Whether a model of the family may lack the bias.
    """
    weight = Rule(f"{ours}.weight", f"{theirs}.weight", Copy() if op is None else op)
    return weight, Rule(f"{ours}.bias", f"{theirs}.bias", is_optional=is_bias_optional)


@dataclass(frozen=True, slots=True)
class Group:
    """A rule with its placeholders filled: the tensors that are converted together."""

    rule: Rule
    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    def to_ours(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Convert Hugging Face's tensors, in the order of `theirs`, to ours."""
        return self.rule.op.apply(tensors)

    def to_theirs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Convert our tensors, in the order of `ours`, to Hugging Face's."""
        return self.rule.op.inverse.apply(tensors)
