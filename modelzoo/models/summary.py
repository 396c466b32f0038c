"""A model's parameters as a table: what each part holds, in which dtype, and how much of it is trained."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

__all__ = ["Part", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class Part:
    """A line of a summary."""

    name: str
    """Module names, as `encoder.layers.0-11` for equal neighbours."""
    kind: str
    """Class of the module."""
    parameters: int
    """Elements, of all the modules of the line together."""
    size_bytes: int
    """Bytes of those elements."""
    dtypes: tuple[str, ...]
    """Dtypes found, most frequent first."""
    is_unit: bool
    """Whether each module of the line is a unit that the runtime shards and moves by itself."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What `model.summary()` returns; `print` shows it as a table."""

    title: str
    parts: tuple[Part, ...]
    parameters: int
    """Elements of all parameters, ties counted once, shards counted whole."""
    trainable: int
    """Elements that get a gradient."""
    size_bytes: int

    def __str__(self) -> str:
        """Return the table."""
        rows = [
            (
                part.name + (" *" if part.is_unit else ""),
                part.kind,
                f"{part.parameters:,}",
                _size(part.size_bytes),
                ", ".join(part.dtypes),
            )
            for part in self.parts
        ]
        share = 100 * self.trainable / max(self.parameters, 1)
        total = ("total", "", f"{self.parameters:,}", _size(self.size_bytes), f"{share:.1f} % trained")
        header = ("part", "module", "parameters", "size", "dtype")
        widths = [max(len(row[i]) for row in (*rows, total, header)) for i in range(5)]

        def line(row: Sequence[str]) -> str:
            left = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}"
            return f"{left}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip()

        rule = "-" * (sum(widths) + 8)
        notes = (
            ["* each is a unit that is sharded, recomputed and moved by itself"] if any(part.is_unit for part in self.parts) else []
        )
        return "\n".join([self.title, line(header), rule, *map(line, rows), rule, line(total), *notes])


def summarize(model: nn.Module, units: Sequence[nn.Module]) -> Summary:
    """Count a model's parameters by part.

    Args:
        model: Any module.
        units: Those of its modules that are shard units.
    """
    unit_ids = {id(unit) for unit in units}
    parts = _merge(_part(name, module, id(module) in unit_ids) for name, module in _lines(model, "", unit_ids))
    parameters = list(model.parameters())
    config = getattr(model, "task", None)
    return Summary(
        title=type(model).__name__.removeprefix("FSDP") + (f" for {config}" if config else ""),
        parts=tuple(part for part in parts if part.parameters),
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        size_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    )


def _lines(module: nn.Module, prefix: str, unit_ids: set[int]) -> Iterable[tuple[str, nn.Module]]:
    """Walk down to the units, and elsewhere one level down."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        holds_units = id(child) not in unit_ids and any(id(inner) in unit_ids for inner in child.modules())
        if holds_units:
            yield from _lines(child, path, unit_ids)
        else:
            yield path, child


def _part(name: str, module: nn.Module, is_unit: bool) -> Part:
    parameters = list(module.parameters())
    dtypes = Counter(str(parameter.dtype).removeprefix("torch.") for parameter in parameters)
    return Part(
        name=name,
        kind=type(module).__name__,
        parameters=sum(parameter.numel() for parameter in parameters),
        size_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        dtypes=tuple(dtype for dtype, _ in dtypes.most_common()),
        is_unit=is_unit,
    )


def _merge(parts: Iterable[Part]) -> list[Part]:
    """Put neighbours that differ by their number alone on one line."""
    merged: list[Part] = []
    counts: list[int] = []
    for part in parts:
        stem, _, number = part.name.rpartition(".")
        last = merged[-1] if merged else None
        if last is not None and number.isdigit() and last.name.rpartition(".")[0] == stem:
            first = last.name.rpartition(".")[2].partition("-")[0]
            same = (part.kind, part.dtypes, part.is_unit, part.parameters * counts[-1])
            if same == (last.kind, last.dtypes, last.is_unit, last.parameters):
                total = last.parameters + part.parameters
                size = last.size_bytes + part.size_bytes
                merged[-1] = Part(f"{stem}.{first}-{number}", part.kind, total, size, part.dtypes, part.is_unit)
                counts[-1] += 1
                continue
        merged.append(part)
        counts.append(1)
    return merged


def _size(size_bytes: int) -> str:
    """Return bytes as text with a binary unit."""
    if size_bytes < 1 << 20:
        return f"{size_bytes / 1024:.1f} KiB"
    return f"{size_bytes / (1 << 20):.1f} MiB" if size_bytes < 1 << 30 else f"{size_bytes / (1 << 30):.2f} GiB"
