"""The engine of a family's table of tensor names: one list of rules, read in both directions.

A table is written once, with Hugging Face's names on one side and ours on the other. Everything that a conversion needs is
derived from it: the names that a model of n layers must find in a file, the names it writes, and how a tensor (or its gradient)
goes from one to the other.
"""

from collections.abc import Iterable
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from torch import Tensor

from modelzoo.converters.rules import Group, Rule, bindings_of, modules, names_of, placeholders_of
from modelzoo.errors import CheckpointError, listing

__all__ = ["Group", "Ignore", "Mapping", "Prefix", "Rule", "Tied", "modules"]


@dataclass(frozen=True)
class Prefix:
    """A prefix that files carry or not: `bert.` stands before the backbone's names in a file with a head.

    Attributes:
        name: The prefix with its dot; the rules' names carry it.
        roots: First components of the names that get it when a file leaves it out.
        written: Whether the exported names keep it.
        other: Another prefix that the files of some task have in its place; "" for none.
        writes_other: Whether this task is that one.
    """

    name: str
    roots: tuple[str, ...]
    written: bool
    other: str = ""
    writes_other: bool = False


@dataclass(frozen=True)
class Ignore:
    """Keys of a file that are left out on purpose, and why.

    Attributes:
        pattern: A full key with placeholders, or a beginning that ends in `*`.
        reason: Why the model loses nothing.
    """

    pattern: str
    reason: str

    def covers(self, name: str) -> bool:
        """Return whether this pattern covers that canonical key."""
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1])
        return bindings_of(self.pattern, name) is not None


@dataclass(frozen=True)
class Tied:
    """A second name that a file may carry for a tensor.

    Attributes:
        alias: The second key.
        target: The key that the rules use. Where a file lacks it, the alias is read in its place.
        must_equal: Whether both keys must hold the same values when a file has both.
        written: Whether an export writes the alias too, as a copy.
    """

    alias: str
    target: str
    must_equal: bool = True
    written: bool = False


@dataclass(frozen=True)
class Mapping:
    """A family's tensor names for one task.

    Attributes:
        rules: The table.
        prefix: The prefix that files may leave out.
        endings: (old, current) endings of keys, each of whole components: a key that is `old` or ends in `.old` is renamed.
        ignore: What is left out on purpose.
        tied: Second names.
    """

    rules: tuple[Rule, ...]
    prefix: Prefix | None = None
    endings: tuple[tuple[str, str], ...] = ()
    ignore: tuple[Ignore, ...] = ()
    tied: tuple[Tied, ...] = ()

    def canonical(self, key: str) -> str:
        """Return a file's key as the rules write it: current endings, with the prefix."""
        for old, current in self.endings:
            if key == old or key.endswith(f".{old}"):
                key = key[: len(key) - len(old)] + current
        if self.prefix and key.split(".", 1)[0] in self.prefix.roots:
            return self.prefix.name + key
        if self.prefix and self.prefix.other and key.startswith(self.prefix.other):
            return self.prefix.name + key.removeprefix(self.prefix.other)
        return key

    def written(self, name: str) -> str:
        """Return a rule's name as an export writes it."""
        if self.prefix and not self.prefix.written:
            return name.removeprefix(self.prefix.name)
        if self.prefix and self.prefix.writes_other and name.startswith(self.prefix.name):
            return self.prefix.other + name.removeprefix(self.prefix.name)
        return name

    def plan(self, names: Iterable[str]) -> list[Group]:
        """Group a model's own tensor names by rule, in the order of the names.

        Raises:
            CheckpointError: A name has no rule, or a rule that joins several tensors finds some of them only.
        """
        names = list(names)
        groups, problems = self._grouped(names, "ours")
        known = set(names)
        for group in groups:
            absent = [name for name in group.ours if name not in known]
            problems += [f"{name}: expected beside {group.ours[0]}, found nothing" for name in absent]
        if problems:
            raise CheckpointError(f"The model and its table of names do not agree:\n{listing(problems)}")
        return groups

    def expected(self, counts: MappingABC[str, int], *, with_optional: bool = False) -> list[Group]:
        """Return all groups that a model with these counts, such as `{"layer": 12}`, must have.

        Args:
            counts: How many there are of what each placeholder numbers.
            with_optional: Whether to add those that it may have.

        Raises:
            KeyError: A rule has a placeholder without a count.
        """
        groups = []
        for rule in self.rules:
            if rule.is_optional and not with_optional:
                continue
            keys = rule.shared()
            for values in product(*(range(counts[key]) for key in keys)):
                groups.append(rule.group(dict(zip(keys, values, strict=True))))
        return groups

    def to_ours(self, tensors: MappingABC[str, Tensor]) -> dict[str, Tensor]:
        """Convert all tensors of a Hugging Face model (or their gradients) to our names.

        Args:
            tensors: By Hugging Face's names. Ignored keys and second names may be among them and are left out.

        Raises:
            CheckpointError: A key is not known, or a rule finds some of its tensors only.
        """
        found = {self.canonical(key): tensor for key, tensor in tensors.items()}
        aliases = {tie.alias for tie in self.tied if tie.target in found}
        names = [name for name in found if name not in aliases and self.ignored(name) is None]
        groups, problems = self._grouped(names, "theirs")
        for group in groups:
            problems += [f"{name}: expected, found nothing" for name in group.theirs if name not in found]
        if problems:
            raise CheckpointError(f"These tensors do not fit the table of names:\n{listing(problems)}")
        result: dict[str, Tensor] = {}
        for group in groups:
            result.update(zip(group.ours, group.to_ours([found[name] for name in group.theirs]), strict=True))
        return result

    def to_theirs(self, tensors: MappingABC[str, Tensor]) -> dict[str, Tensor]:
        """Convert all tensors of one of our models (or their gradients) to Hugging Face's names.

        Raises:
            CheckpointError: As `plan`.
        """
        result: dict[str, Tensor] = {}
        for group in self.plan(tensors):
            converted = group.to_theirs([tensors[name] for name in group.ours])
            result.update(zip(group.theirs, converted, strict=True))
        for tie in self.tied:
            if tie.written and tie.target in result:
                result[tie.alias] = result[tie.target]
        return {self.written(name): tensor for name, tensor in result.items()}

    def ignored(self, name: str) -> str | None:
        """Return why a canonical key is left out, or None when it is not."""
        return next((entry.reason for entry in self.ignore if entry.covers(name)), None)

    def locate(self, name: str) -> tuple[Rule, dict[str, int]] | None:
        """Return the rule of a canonical Hugging Face key, and its placeholders' values."""
        return self._located(name, "theirs")

    @cached_property
    def _exact(self) -> dict[str, dict[str, Rule]]:
        """Rules without placeholders by name: most of a table's lookups need no expression."""
        sides: dict[str, dict[str, Rule]] = {"ours": {}, "theirs": {}}
        for rule in self.rules:
            for side, names in (("ours", rule.ours), ("theirs", rule.theirs)):
                sides[side].update({name: rule for name in names_of(names) if not placeholders_of(name)})
        return sides

    def _located(self, name: str, side: str) -> tuple[Rule, dict[str, int]] | None:
        exact = self._exact[side].get(name)
        if exact is not None:
            return exact, {}
        for rule in self.rules:
            bindings = rule.match(name, side=side)
            if bindings is not None:
                return rule, bindings
        return None

    def _grouped(self, names: Iterable[str], side: str) -> tuple[list[Group], list[str]]:
        groups: dict[tuple[str, ...], Group] = {}
        problems = []
        for name in names:
            located = self._located(name, side)
            if located is None:
                problems.append(f"{name}: expected a name of the table, found no rule for it")
                continue
            group = located[0].group(located[1])
            groups[group.ours] = group
        return list(groups.values()), problems
