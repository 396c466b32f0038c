"""Where the tiers of a planned run keep its values: the placement of its budgets, and the lines of what each tier then holds."""

from modelzoo.config import MemoryConfig
from modelzoo.config.memory import parse_size
from modelzoo.errors import ConfigError
from modelzoo.plan.layout import Cut
from modelzoo.plan.line import Line
from modelzoo.plan.machine import Machine
from modelzoo.plan.moments import Moment
from modelzoo.plan.parts import ModelParts
from modelzoo.runtime.checkpoints.publish import readable_size
from modelzoo.runtime.tiers.device_placement import place_below_device
from modelzoo.runtime.tiers.placement import Placement, place_units
from modelzoo.runtime.tiers.unit import Home

__all__ = ["host_lines", "place", "recipe_budget", "tier_lines"]


def place(
    model: ModelParts, cut: Cut, memory: MemoryConfig, machine: Machine, reserved: int, problems: list[str]
) -> tuple[Placement, int | None]:
    """Return where values live, and the budget of the memory that a rank computes in (None for no limit).

    Budgets that are too small are problems, and the least ones that are not are planned.

    Args:
        model: Its units.
        cut: Over the ranks.
        memory: Budgets of the tiers.
        machine: Where.
        reserved: Bytes beside the model in the memory that a rank computes in.
        problems: To which what does not fit is added.
    """
    return (_below_device if machine.kind == "cuda" else _in_memory)(model, cut, memory, machine, reserved, problems)


def _in_memory(
    model: ModelParts, cut: Cut, memory: MemoryConfig, machine: Machine, reserved: int, problems: list[str]
) -> tuple[Placement, int | None]:
    """Return where values live under the recipe's budget; a budget that is too small is a problem, and the least one is planned."""
    budget = recipe_budget(memory, machine)
    sizes = [cut.tier_sizes(unit) for unit in model.units]
    room = None if budget is None else max(budget - reserved, 0)

    def placed(room: int | None) -> Placement:
        return place_units(
            sizes,
            budget_bytes=room,
            has_disk=memory.disk.path is not None,
            slots=memory.slots,
            how=memory.placement,
            when=memory.optimizer_update,
            ranks=cut.shared_by,
        )

    try:
        return placed(room), budget
    except ConfigError:
        smallest = placed(None).smallest_bytes
        key, text = ("memory.host", memory.host) if memory.host is not None else ("memory.device", memory.device)
        least = f"{readable_size(smallest + reserved)} ({smallest + reserved} bytes)"
        parts = f"{readable_size(smallest)} for the model and {readable_size(reserved)} beside it"
        more = "" if memory.disk.path is not None else "; or give memory.disk.path"
        problems.append(f"{key}={text} is too small: expected at least {least}: {parts}{more}")
        return placed(smallest), budget


def _below_device(
    model: ModelParts, cut: Cut, memory: MemoryConfig, machine: Machine, reserved: int, problems: list[str]
) -> tuple[Placement, int | None]:
    """Return where values live on and below an accelerator; budgets that are too small are problems, and the least are planned."""
    device = _budget(memory.device or "auto", machine.device_memory)
    host = max(_budget(memory.host or "auto", machine.host_memory) - machine.program_bytes, 0)

    def placed(device_bytes: int | None, host_bytes: int | None) -> Placement:
        return place_below_device(
            [cut.tier_sizes(unit) for unit in model.units],
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            has_disk=memory.disk.path is not None,
            slots=memory.slots,
            how=memory.placement,
            when=memory.optimizer_update,
            ranks=cut.shared_by,
            reserved_bytes=reserved,
        )

    room = max(device - reserved, 0)
    try:
        return placed(room, host), device
    except ConfigError as error:
        problems.append(str(error))
    return placed(max(room, placed(None, None).smallest_bytes), None), device


def recipe_budget(memory: MemoryConfig, machine: Machine) -> int | None:
    """Return how many bytes of the memory that a rank computes in a recipe allows; None where it sets no limit."""
    if machine.kind == "cuda":
        return None if memory.device is None else _budget(memory.device, machine.device_memory)
    text = memory.host if memory.host is not None else memory.device
    return None if text is None else _budget(text, machine.host_memory)


def _budget(text: str, total: int) -> int:
    return int(0.85 * total) if text == "auto" else parse_size(text, total)


def _values_at(model: ModelParts, cut: Cut, placement: Placement, where: Home) -> dict[str, int]:
    """Return the bytes of every kind that live in a tier."""
    found = dict.fromkeys(("parameters", "gradients", "exp_avg", "exp_avg_sq"), 0)
    for unit, homes in zip(model.units, placement.homes, strict=True):
        size = cut.tier_sizes(unit)
        for kind, home in homes.items():
            takes = size.shard if kind == "parameters" else size.trained and size.shard
            found[kind] += 4 * takes if home == where else 0
    return found


def host_lines(model: ModelParts, cut: Cut, placement: Placement) -> list[Line]:
    """Return what is in the host's memory below an accelerator."""
    values = _values_at(model, cut, placement, "host")
    lines = [
        Line("parameters", values["parameters"], "of blocks that are below the device"),
        Line("gradients", values["gradients"], "of blocks that are below the device"),
        Line("moments", values["exp_avg"] + values["exp_avg_sq"], "of blocks that are below the device"),
    ]
    rest = placement.host_bytes - sum(line.size_bytes for line in lines)
    lines.append(Line("buffers", max(rest, 0), "pieces of the update, and blocks on their way from the disk"))
    return [line for line in lines if line.size_bytes]


def tier_lines(
    model: ModelParts,
    cut: Cut,
    placement: Placement,
    memory: MemoryConfig,
    budget: int | None,
    tier: str,
    moment: Moment | None,
) -> list[Line]:
    """Return what the model takes of the memory that a rank computes in.

    Args:
        model: Its units.
        cut: Over the ranks.
        placement: Where values live.
        memory: Budgets of the tiers.
        budget: Of that memory; None for no limit.
        tier: Its name.
        moment: The fullest one, where memory goes back at once; None counts all that there is in a step.
    """
    in_memory = _values_at(model, cut, placement, "memory")
    if memory.optimizer_update == "in_backward":
        in_memory["gradients"] = 0
    if moment is not None:
        in_memory["gradients"] = moment.gradients
    under = "no limit" if budget is None else f"under {readable_size(budget)}"
    home = "memory" if tier == "host" else "the device"
    lines = [
        Line("parameters", in_memory["parameters"], f"of blocks whose home is {home}, {under}"),
        Line("gradients", in_memory["gradients"], f"of blocks whose home is {home}"),
        Line("moments", in_memory["exp_avg"] + in_memory["exp_avg_sq"], f"of blocks whose home is {home}"),
    ]
    rest = placement.memory_bytes - sum(line.size_bytes for line in lines) if moment is None else moment.copies
    lines.append(
        Line("working copies and slots", rest, f"blocks at work and their gradients, {memory.slots} slots, buffers of the update")
    )
    return lines
