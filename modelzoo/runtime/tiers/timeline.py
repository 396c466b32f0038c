"""What each tier holds while a run trains, moment by moment: the first steps are recorded as JSON lines, and then nothing is.

A sample is taken when a block begins its forward or its backward, at the loss, and before and after the optimizer's step. What the
process takes beyond the values that the tiers know is called activations, and contains their workspace; what it took before the
step, the program.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from modelzoo.runtime.memory import resident_bytes
from modelzoo.runtime.tiers.engine import Tiers
from modelzoo.runtime.tiers.ledger import Resident
from modelzoo.runtime.tiers.recorded import RecordedStep, Sample
from modelzoo.runtime.tiers.unit import KINDS as KINDS_OF_VALUES

__all__ = ["RECORDED_STEPS", "Timeline", "timeline_of"]

log = logging.getLogger(__name__)

RECORDED_STEPS = 3
"""The first step reads blocks as they are needed; from the second one on they are fetched ahead."""
KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "exp_avg": "moments",
    "exp_avg_sq": "moments",
    "inputs": "activations",
}


class Timeline:
    """Records the first steps that are taken after it was made, and then takes its hooks away.

    Args:
        model: Prepared, with tiers.
        tiers: Its tiers.
        optimizer: Over its parameters; its `step` ends a step.
        path: File to write, replaced; None writes nothing.
        planned: First line of the file, "kind" left out; None writes none.
        steps: How many.
    """

    def __init__(
        self,
        model: nn.Module,
        tiers: Tiers,
        optimizer: Optimizer,
        path: Path | None = None,
        *,
        planned: Mapping[str, Any] | None = None,
        steps: int = RECORDED_STEPS,
    ) -> None:
        self._tiers, self._wanted = tiers, steps
        self.planned = planned
        self.steps: list[RecordedStep] = []
        """Those that are complete, and last the one that is under way."""
        self._first = self._program = self._waited = 0.0
        self._bus_before: dict[str, int] = {}
        self._before: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
        self._is_open = False
        self._file: TextIO | None = None
        self._owners = _owners(model)
        self._disk = _disk_bytes(tiers)
        if path is not None:
            self._write_to(path)
        self._handles = list(self._hooks(model, optimizer))
        tiers.ends_with.append(self.close)
        _TIMELINES[tiers] = self

    @property
    def complete(self) -> list[RecordedStep]:
        """Steps that have ended."""
        return self.steps[:-1] if self._is_open else self.steps

    def close(self) -> None:
        """Take the hooks away and close the file."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- when ------------------------------------------------------------------------------------------------------------------

    def _hooks(self, model: nn.Module, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        yield model.register_forward_pre_hook(torch.compiler.disable(self._begin))
        for unit in self._tiers.units:
            if unit.module is not model:
                yield unit.module.register_forward_pre_hook(torch.compiler.disable(partial(self._forward, unit.name)))
                yield unit.module.register_forward_hook(torch.compiler.disable(partial(self._left, unit.name)))
        yield model.register_forward_hook(torch.compiler.disable(self._loss))
        yield optimizer.register_step_pre_hook(lambda *_: self._sample("update"))
        yield optimizer.register_step_post_hook(lambda *_: self._end())

    def _begin(self, model: nn.Module, args: Any) -> None:
        if self._is_open or not torch.is_grad_enabled() or not model.training:
            return
        now = time.perf_counter()
        if not self.steps:
            self._first = now
        self._is_open = True
        self.steps.append(RecordedStep(len(self.steps) + 1, now - self._first))
        self._waited = self._tiers.waited_s
        traffic = self._tiers.traffic
        self._before = (dict(traffic.read_bytes), dict(traffic.written_bytes))
        self._bus_before = self._tiers.link.moved_bytes
        found = self._tiers.resident()
        held_here = found.host if self._tiers.link.is_apart else sum(self._known(found).values())
        self._program = max(resident_bytes() - held_here, 0)

    def _forward(self, name: str, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._sample("forward", name)

    def _left(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Ask the output to tell when its gradient is there: then the block's backward begins."""
        tensor = _first_tensor(output)
        if self._is_open and torch.is_grad_enabled() and tensor is not None and tensor.requires_grad:
            tensor.register_hook(lambda _: self._sample("backward", name))

    def _loss(self, model: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            self._sample("loss")

    def _end(self) -> None:
        if not self._is_open:
            return
        self._sample("updated")
        step, self._is_open = self.steps[-1], False
        step.read_bytes, step.written_bytes = self._moved()
        step.bus_bytes = self._bus()
        self._write([sample.to_json(step.number) for sample in step.samples] + [step.to_json()])
        if len(self.steps) >= self._wanted:
            self.close()

    # -- what ------------------------------------------------------------------------------------------------------------------

    def _sample(self, event: str, unit: str = "") -> None:
        if not self._is_open:
            return
        read, written = self._moved()
        self.steps[-1].samples.append(
            Sample(
                time_s=time.perf_counter() - self._first,
                event=event,
                unit=unit,
                resident=self._resident(),
                traffic={"disk>host": sum(read.values()), "host>disk": sum(written.values()), **self._bus()},
                stall_s=self._tiers.waited_s - self._waited,
            )
        )

    def _resident(self) -> dict[str, dict[str, int]]:
        """Return bytes by tier and kind, of the tier that the model computes in first."""
        found, link = self._tiers.resident(), self._tiers.link
        known = self._known(found)
        disk = {**self._disk, "activations": self._tiers.inputs_on_disk}
        program = int(self._program)
        if not link.is_apart:
            activations = max(resident_bytes() - program - sum(known.values()), 0)
            return {"host": {"program": program, **known, "activations": activations}, "disk": disk}
        allocated = link.allocated_bytes
        activations = 0 if allocated is None else max(allocated - sum(known.values()), 0)
        homes = self._host_homes()
        host = {"program": program, **homes, "buffers": found.host - sum(homes.values())}
        return {"device": {**known, "activations": activations}, "host": host, "disk": disk}

    def _host_homes(self) -> dict[str, int]:
        """Return bytes by kind of what lives in the host's memory below an accelerator."""
        found: dict[str, int] = {}
        for unit in self._tiers.units:
            for kind in KINDS_OF_VALUES:
                found[KINDS[kind]] = found.get(KINDS[kind], 0) + unit.region_bytes("host", (kind,))
        return found

    def _known(self, found: Resident) -> dict[str, int]:
        """Return bytes by kind, of what the tiers and `fully_shard` hold where the model computes."""
        working = 0
        for module, name, sharded in self._owners:
            whole = module._parameters.get(name)
            if whole is not None and whole is not sharded:
                working += whole.nbytes + (whole.grad.nbytes if whole.grad is not None else 0)
        return {
            "parameters": found.parameters,
            "gradients": found.gradients,
            "moments": found.moments,
            "working copies": working,
            "slots": found.slots,
            "buffers": found.scratch + found.inputs,
        }

    def _moved(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return bytes that were read and written since the step began, by kind."""
        traffic = self._tiers.traffic
        found: tuple[dict[str, int], dict[str, int]] = ({}, {})
        for counts, before, now in zip(found, self._before, (traffic.read_bytes, traffic.written_bytes), strict=True):
            for kind, count in dict(now).items():
                name = KINDS.get(kind, kind)
                counts[name] = counts.get(name, 0) + count - before.get(kind, 0)
        return found

    def _bus(self) -> dict[str, int]:
        """Return bytes that were copied between device and host since the step began."""
        return {pair: count - self._bus_before.get(pair, 0) for pair, count in self._tiers.link.moved_bytes.items()}

    # -- where to --------------------------------------------------------------------------------------------------------------

    def _write_to(self, path: Path) -> None:
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            log.warning("%s: no timeline is written: %s", path, error.strerror)
            return
        if self.planned is not None:
            self._write([{"kind": "plan", **self.planned}])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        """Write lines at once; a picture is not worth a run, so what goes wrong is logged."""
        if self._file is None:
            return
        try:
            self._file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            self._file.flush()
        except OSError as error:
            log.warning("%s: the timeline ends here: %s", self._file.name, error.strerror)
            self._file = None


_TIMELINES: WeakKeyDictionary[Tiers, Timeline] = WeakKeyDictionary()


def timeline_of(tiers: Tiers) -> Timeline | None:
    """Return the timeline of tiers, where somebody records one."""
    return _TIMELINES.get(tiers)


def _owners(model: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return where each sharded parameter lies, once; while it is put together, another tensor lies there."""
    found: dict[int, tuple[nn.Module, str, nn.Parameter]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), (module, name, parameter))
    return list(found.values())


def _disk_bytes(tiers: Tiers) -> dict[str, int]:
    """Return what lives on disk, by kind."""
    found: dict[str, int] = {}
    for unit in tiers.units:
        for kind in ("parameters", "gradients", "exp_avg", "exp_avg_sq"):
            if unit.homes[kind] == "disk":
                found[KINDS[kind]] = found.get(KINDS[kind], 0) + 4 * unit.elements
    return found


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    parts = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, tuple | list)
        else vars(value).values()
        if hasattr(value, "__dict__")
        else ()
    )
    return next((tensor for part in parts if (tensor := _first_tensor(part)) is not None), None)
