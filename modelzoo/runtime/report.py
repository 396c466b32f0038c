"""What a prepared model holds on this rank, what its steps exchanged, and where their time went: measured, not estimated."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.prepare import Prepared, prepared
from modelzoo.runtime.tiers import tiers_of
from modelzoo.runtime.tiers.timeline import timeline_of
from modelzoo.runtime.tiers.timeline_text import timeline_lines
from modelzoo.sharded import is_away, stored_bytes

__all__ = ["Report", "TierReport", "UnitBytes", "report"]


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """What a unit holds on this rank."""

    name: str
    """Of the module; "(rest)" for what is in no unit."""
    parameters: int
    """Elements of the whole unit."""
    whole_bytes: int
    """Of its parameters when they are put together."""
    parameter_bytes: int
    """Of this rank's part of them; what is on disk counts nothing here and below."""
    gradient_bytes: int
    moment_bytes: int


@dataclass(frozen=True, slots=True)
class TierReport:
    """What a rank's tiers did, in an average step where there was one."""

    planned_bytes: int
    """Peak of the model's values, slots and working copies in memory, as placed."""
    resident_bytes: dict[str, int]
    """In memory at its fullest, by kind, without what is put together for a moment."""
    disk_bytes: int
    read_bytes: dict[str, int]
    written_bytes: dict[str, int]
    waited_s: float
    """Seconds in which the model waited for a lower tier or for an update."""
    host_bytes: int = 0
    """In the host's memory below an accelerator at its fullest."""
    bus_bytes: dict[str, int] = field(default_factory=dict)
    """Copied between an accelerator and its host, by direction."""
    timeline: tuple[str, ...] = ()
    """A picture of one of the first steps, line by line, where they were recorded."""

    def lines(self) -> list[str]:
        """Return it as lines of text."""
        here = {name: count for name, count in self.resident_bytes.items() if count and name != "host"}
        held_text = "  ".join(f"{name} {readable_size(count)}" for name, count in here.items())
        lines = [f"memory   {readable_size(sum(here.values()))} of {readable_size(self.planned_bytes)} planned: {held_text}"]
        if self.bus_bytes:
            moved = "  ".join(f"{pair} {readable_size(count)}" for pair, count in self.bus_bytes.items())
            lines += [f"host     {readable_size(self.host_bytes)} at its fullest", f"copied   {moved} a step"]
        waited = f"the model waited {1000 * self.waited_s:.1f} ms a step for a lower tier"
        lines.append(f"disk     {readable_size(self.disk_bytes)}, {waited}")
        for doing, counts in (("read", self.read_bytes), ("written", self.written_bytes)):
            moved = "  ".join(f"{name} {readable_size(count)}" for name, count in counts.items() if count)
            lines.append(f"{doing:<8} {moved or 'nothing'} a step")
        return [*lines, *self.timeline]


@dataclass(frozen=True, slots=True)
class Report:
    """What `report` returns; `print` shows it as tables."""

    layout: dict[str, Any]
    """The config, with every `auto` decided."""
    steps: int
    seconds: dict[str, float]
    """Of an average step, by phase: data, compute, communication, optimizer."""
    sent_bytes: dict[str, int]
    """Of an average step, by kind: gather, reduce, replicate, tensor (see `Traffic`)."""
    units: tuple[UnitBytes, ...]
    tiers: "TierReport | None" = None
    """Of a model with tiers."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the tables."""
        chosen = "  ".join(f"{name}={value}" for name, value in self.layout.items())
        lines = [f"layout   {chosen}"]
        if self.steps:
            total = sum(self.seconds.values()) or 1.0
            shares = "  ".join(f"{name} {1000 * spent:.1f} ms ({spent / total:.0%})" for name, spent in self.seconds.items())
            lines.append(f"a step   {shares}   (average of {self.steps})")
            moved = "  ".join(f"{name} {readable_size(count)}" for name, count in self.sent_bytes.items())
            lines.append(f"sent     {moved or 'nothing'} a step by this rank")
        if self.tiers is not None:
            lines += self.tiers.lines()
        header = ("unit", "parameters", "whole", "parameters here", "gradients here", "moments here")
        rows = [
            (
                unit.name,
                f"{unit.parameters:,}",
                *(
                    readable_size(count)
                    for count in (unit.whole_bytes, unit.parameter_bytes, unit.gradient_bytes, unit.moment_bytes)
                ),
            )
            for unit in self.units
        ]
        return "\n".join([*lines, "", *_table([header, *rows])])


def report(model: nn.Module, optimizer: Optimizer | None = None) -> Report:
    """Return what a model's layout holds and did since it was prepared. Not collective: it is this rank's.

    Args:
        model: After `prepare`; a plain model has a unit table and no steps.
        optimizer: Over its parameters; without it moments are not counted.
    """
    known = prepared(model)
    steps = max(known.clock.steps, 1)
    spent = {name: seconds / steps for name, seconds in known.clock.seconds.items()}
    waited = sum(known.traffic.seconds.values()) / steps
    if "compute" in spent:
        spent = {
            "data": spent.get("data", 0.0),
            "compute": max(spent["compute"] - waited, 0.0),
            "communication": waited,
            "optimizer": spent.get("optimizer", 0.0),
        }
    config = known.config.model_dump(exclude={"ranks", "timeout_s"})
    return Report(
        layout=config,
        steps=known.clock.steps,
        seconds=spent,
        sent_bytes={name: count // steps for name, count in known.traffic.sent_bytes.items()},
        units=tuple(_units(model, known, optimizer)),
        tiers=_tiers(model, steps),
    )


def _tiers(model: nn.Module, steps: int) -> TierReport | None:
    tiers = tiers_of(model)
    if tiers is None:
        return None
    return TierReport(
        planned_bytes=tiers.placement.memory_bytes,
        resident_bytes=tiers.ledger.peak.to_json(),
        disk_bytes=tiers.placement.disk_bytes,
        read_bytes={kind: count // steps for kind, count in tiers.traffic.read_bytes.items()},
        written_bytes={kind: count // steps for kind, count in tiers.traffic.written_bytes.items()},
        waited_s=tiers.waited_s / steps,
        host_bytes=tiers.ledger.host_peak if tiers.link.is_apart else 0,
        bus_bytes={pair: count // steps for pair, count in tiers.link.moved_bytes.items()},
        timeline=() if (timeline := timeline_of(tiers)) is None else tuple(timeline_lines(timeline)),
    )


def _units(model: nn.Module, known: Prepared, optimizer: Optimizer | None) -> Iterator[UnitBytes]:
    names = {id(module): name for name, module in model.named_modules()}
    seen: set[int] = set()
    for unit in known.units:
        own = [parameter for parameter in unit.parameters() if id(parameter) not in seen]
        seen.update(id(parameter) for parameter in own)
        yield _count(names.get(id(unit), type(unit).__name__), own, optimizer)
    rest = [parameter for parameter in model.parameters() if id(parameter) not in seen]
    if rest:
        yield _count("(rest)", rest, optimizer)


def _count(name: str, parameters: Sequence[nn.Parameter], optimizer: Optimizer | None) -> UnitBytes:
    states = [optimizer.state.get(parameter, {}) for parameter in parameters] if optimizer is not None else []
    moments = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return UnitBytes(
        name=name,
        parameters=sum(parameter.numel() for parameter in parameters),
        whole_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        parameter_bytes=sum(_bytes_here(parameter) for parameter in parameters),
        gradient_bytes=sum(_bytes_here(gradient) for gradient in gradients),
        moment_bytes=sum(_bytes_here(moment) for moment in moments),
    )


def _bytes_here(tensor: torch.Tensor) -> int:
    return 0 if is_away(tensor) else stored_bytes(tensor)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join([f"{row[0]:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
