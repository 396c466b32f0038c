"""Time of a step and what bounds it: a roofline by kind of work, with what is done one after the other added up.

Operations: 2 a value of a matrix and token in the forward, twice that in the backward (less where values are frozen, see
`modelzoo.plan.backward`), once more where it is computed again (Narayanan et al., 2021, appendix); attention 4 N H a pair of
tokens, half of that where it is causal, and 2.5 times in the fused backward, which computes the scores again (Dao, 2023, section
2). Elementwise work is bound by memory: the bytes that each operation reads and writes, counted for the eager operations of
`modelzoo.layers`; compiled, an operation between matrix products reads its inputs and writes its outputs once. The update reads 16
and writes 12 bytes a parameter (fused AdamW), clipping reads 4. Putting parameters together and taking gradients apart reads and
writes 16 bytes a parameter and micro-batch.

An accelerator exchanges beside its computing, so that the longer of both is the step, and the first gather and the last reduction
of a block stand alone; the exchanges of CPU ranks share its cores and are added. A disk tier works beside the forward and beside
the backward, and the longer of both counts in each; an update after the backward stands alone. With a budget each large tensor's
memory is asked of the system anew, which clears its pages.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from modelzoo.config.parallel import recomputed
from modelzoo.plan.activations import unit_activations
from modelzoo.plan.head_activations import head_activations
from modelzoo.plan.layout import Cut
from modelzoo.plan.machine import Machine
from modelzoo.plan.memory import MemoryPlan
from modelzoo.plan.parts import AttentionPart, FeedForwardPart, MixturePart, ModelParts, NormPart, UnitParts
from modelzoo.plan.traffic import TrafficPlan
from modelzoo.plan.workload import MASKED_SHARE, Workload

__all__ = ["TimePlan", "plan_time"]


@dataclass(frozen=True, slots=True)
class TimePlan:
    """Seconds of a step."""

    seconds: Mapping[str, float]
    """By kind: compute, attention, memory, pages, optimizer, communication, bus, disk."""
    step: float
    bound: str
    """compute, memory, communication, bus or disk."""
    operations: float
    """Of a rank's step, computed again included."""
    how: Mapping[str, str]
    """Formula of each kind, with its numbers."""
    stall: float = 0.0
    """Seconds of the step in which the model waits for a lower tier."""


@dataclass(slots=True)
class _Work:
    products: float = 0.0
    attention: float = 0.0
    moved: float = 0.0


def plan_time(model: ModelParts, work: Workload, cut: Cut, traffic: TrafficPlan, memory: MemoryPlan, machine: Machine) -> TimePlan:
    """Return how long a step takes.

    Args:
        model: Its units.
        work: Of a rank.
        cut: Over the ranks.
        traffic: Of the step.
        memory: What is held where.
        machine: Where.
    """
    total = _step_work(model, work, cut)
    held = sum(cut.trained(unit) for unit in model.units)
    below = _updated_below(model, cut, memory)
    whole = sum(cut.whole(unit) for unit in model.units)
    is_cut = cut.is_sharded(for_tiers=memory.placement is not None)
    # with tiers a block is put together twice
    rebuilt = (32.0 if memory.placement is not None else 16.0) * whole * work.micro_batches if is_cut else 0.0
    rate = machine.flops[work.precision]
    fresh = _fresh_bytes(model, work, cut) if memory.gives_back else 0.0
    seconds = {
        "compute": total.products / rate,
        "attention": total.attention / min(machine.attention_flops, rate),
        "memory": (total.moved + rebuilt) / machine.memory_bandwidth,
        "pages": fresh / machine.first_touch,
        "optimizer": 32.0 * (held - below) / machine.memory_bandwidth + 32.0 * below / machine.host_bandwidth,
        "communication": traffic.sent / machine.link_bandwidth,
        "bus": sum(_bus_seconds(traffic, phase, machine) for phase in traffic.bus),
        "disk": sum(_disk_seconds(traffic, phase, machine) for phase in traffic.disk),
    }
    computing = sum(seconds[name] for name in ("compute", "attention", "memory", "pages"))
    exchanged, optimizer = seconds["communication"], seconds["optimizer"]
    if traffic.disk or traffic.bus:
        step = _step_with_tiers(model, work, traffic, memory, machine, computing + exchanged, optimizer)
    elif machine.overlaps:
        step = max(computing + optimizer + exchanged / max(len(model.blocks), 1), exchanged)
    else:
        step = computing + optimizer + exchanged
    groups = {
        "compute": seconds["compute"] + seconds["attention"],
        "memory": seconds["memory"] + seconds["pages"] + optimizer,
        "communication": exchanged,
        "bus": seconds["bus"],
        "disk": seconds["disk"],
    }
    pairs = traffic.by_pair
    how = {
        "compute": f"{total.products:.3g} operations / {rate:.3g} a second ({work.precision})",
        "attention": f"{total.attention:.3g} operations / {machine.attention_flops:.3g} a second",
        "memory": f"{total.moved + rebuilt:.3g} bytes of elementwise work and copies / {machine.memory_bandwidth:.3g} a second",
        "pages": f"{fresh:.3g} bytes that are asked of the system anew, for a budget / {machine.first_touch:.3g} a second",
        "optimizer": f"{held - below:,} values x 32 bytes / {machine.memory_bandwidth:.3g} a second"
        + (f" + {below:,} on the host / {machine.host_bandwidth:.3g}" if below else ""),
        "bus": f"{pairs.get('host>device', 0):,} bytes up and {pairs.get('device>host', 0):,} down, at once in the backward / "
        f"{machine.bus_bandwidth:.3g} a second",
        "communication": f"{traffic.sent:,} bytes sent / {machine.link_bandwidth:.3g} a second",
        "disk": f"{traffic.disk_read:,} bytes read / {machine.disk_read:.3g} + {traffic.disk_written:,} written / "
        f"{machine.disk_write:.3g} a second",
    }
    stall = max(step - computing - exchanged - optimizer, 0.0) if traffic.disk or traffic.bus else 0.0
    return TimePlan(seconds, step, max(groups, key=lambda name: groups[name]), total.products + total.attention, how, stall)


def _disk_seconds(traffic: TrafficPlan, phase: str, machine: Machine) -> float:
    """Return how long the disk works in a phase; what it reads and writes at once shares its time."""
    read, written = traffic.disk.get(phase, (0, 0))
    return read / machine.disk_read + written / machine.disk_write


def _bus_seconds(traffic: TrafficPlan, phase: str, machine: Machine) -> float:
    """Return how long the way between an accelerator and its host is busy in a phase; it goes both ways at once."""
    return max(traffic.bus.get(phase, (0, 0))) / machine.bus_bandwidth


def _updated_below(model: ModelParts, cut: Cut, memory: MemoryPlan) -> int:
    """Return the trained values that are updated on the host below an accelerator."""
    if memory.placement is None or not memory.is_below_device:
        return 0
    units = zip(model.units, memory.placement.homes, strict=True)
    return sum(cut.trained(unit) for unit, homes in units if homes["parameters"] != "memory")


def _step_with_tiers(
    model: ModelParts,
    work: Workload,
    traffic: TrafficPlan,
    memory: MemoryPlan,
    machine: Machine,
    computing: float,
    optimizer: float,
) -> float:
    """Return the length of a step whose forward and backward each run beside the tiers, and whose update may run alone.

    The threads that move values from the disk also update them, so the update belongs to their side; the way up to an accelerator
    and down from it is beside both. The first unit of each phase is waited for.
    """
    again = [products for products, _ in _computed_again(work, len(model.blocks))]
    forward = computing / (3.0 + sum(again) / max(len(again), 1))
    moving = {phase: _disk_seconds(traffic, phase, machine) for phase in ("forward", "backward", "update")}
    where = {"deferred": "forward", "in_backward": "backward", "step": "update"}[memory.when]
    moving[where] += optimizer
    moving = {phase: max(seconds, _bus_seconds(traffic, phase, machine)) for phase, seconds in moving.items()}
    placement = memory.placement
    away = sum(set(homes.values()) != {"memory"} for homes in placement.homes) if placement is not None else 0
    first = (moving["forward"] + moving["backward"]) / max(away, 1)
    return max(forward, moving["forward"]) + max(computing - forward, moving["backward"]) + moving["update"] + first


def _fresh_bytes(model: ModelParts, work: Workload, cut: Cut) -> float:
    """Return the bytes of all tensors that a step makes, where each takes fresh pages.

    What a block keeps without recomputation is what its forward makes; the backward makes as much in gradients, and recomputation
    makes it again. Sharded blocks are put together for the forward and for the backward; their gradients exist whole, in the buffer
    of their reduction, and as its result.
    """
    plain = dataclasses.replace(work, recompute="none", offloads_inputs=False)
    made = 0.0
    for unit, again in zip(
        unit_activations(model, plain, tensor=cut.tensor), recomputed(work.recompute, len(model.blocks)), strict=True
    ):
        made += unit.kept * (2 + again)
    first, last = head_activations(model, plain, tensor=cut.tensor)
    made += 2 * (first.kept + last.kept) + last.again
    copies = sum(map(cut.trained, model.units))
    if cut.is_sharded(for_tiers=True):
        copies += sum(cut.whole(unit) * (2 if unit.is_block else 1) + 2 * cut.trained(unit) for unit in model.units)
    return work.micro_batches * (made + 4.0 * copies)


def _step_work(model: ModelParts, work: Workload, cut: Cut) -> _Work:
    """Return the work of a rank's step: that of its tokens, attention by the rows of the largest micro-batch."""
    total = _Work()
    scored, work = work.step_tokens, work.behind(model.prompt_tokens)
    tokens = work.step_tokens
    targets = tokens * work.target_tokens / max(work.batch_tokens, 1)
    is_twice = _computed_again(work, len(model.blocks))
    for number, unit in enumerate(model.blocks):
        own, lengths = (targets, work.target_lengths or work.lengths) if unit.is_decoder else (tokens, work.lengths)
        # tokens see on average as many others as in the largest micro-batch, but for their share of it
        pairs = own * (sum(length * length for length in lengths) / max(sum(lengths), 1) + work.lead)
        if work.tokens:
            pairs *= work.tokens / max(work.batch_tokens * work.micro_batches, 1)
        only = model.reads_one_token and number == len(model.blocks) - 1
        queries = own * work.sequences / max(sum(lengths), 1) if only else own
        _add(total, unit, work, (own, queries, pairs), is_twice[number], cut.tensor)
    _add_scores(total, model, work, targets if model.has_decoder else scored, cut.tensor)
    return total


def _computed_again(work: Workload, count: int) -> list[tuple[float, float]]:
    """Return for each block which share of its products, and of everything else, is computed again."""
    if work.recompute.startswith("products"):
        return [(1.0 - 1.0 / int(work.recompute.split()[1]), 1.0)] * count
    again = (0.0, 1.0) if work.recompute == "selective" else (1.0, 1.0)
    return [again if is_chosen else (0.0, 0.0) for is_chosen in recomputed(work.recompute, count)]


def _add(
    total: _Work, unit: UnitParts, work: Workload, sizes: tuple[float, float, float], again: tuple[float, float], tensor: int
) -> None:
    tokens, queries, pairs = sizes
    runs = any(back.is_reached for back in unit.backward)  # what has no backward is not computed again
    keeps_attention = work.recompute == "selective" or work.recompute.startswith("products")
    for part, back in zip(unit.parts, unit.backward, strict=True):
        products = attention = moved = 0.0
        size = work.value_bytes
        if isinstance(part, AttentionPart):
            wide, narrow = part.num_heads * part.head_size, part.num_key_value_heads * part.head_size
            products = 2.0 * part.hidden_size * (2 * queries * wide + 2 * tokens * narrow) / tensor
            seen = pairs * queries / max(tokens, 1.0)
            stores = (part.dropout > 0 and work.is_host) or part.has_bias
            attention = 4.0 * seen * wide * (0.5 if part.is_causal and not stores else 1.0) / tensor
            moved = size * queries * (part.hidden_size * (1 if work.is_compiled else 3) + 2 * (wide + narrow) / tensor)
            if part.has_rotary:
                moved += size * tokens * (wide + narrow) / tensor * (2 if work.is_compiled else 9)
            moved += 40.0 * seen * part.num_heads / tensor if stores else 0.0
            moved += 4.0 * size * queries * part.hidden_size if part.output_dropout else 0.0
        elif isinstance(part, FeedForwardPart):
            maps = 3 if part.is_gated else 2
            products = 2.0 * maps * queries * part.hidden_size * part.intermediate_size / tensor
            passes = (3 if part.is_gated else 2) if work.is_compiled else (5 if part.is_gated else 2)
            moved = size * queries * (passes * part.intermediate_size / tensor + part.hidden_size * (1 if work.is_compiled else 3))
            moved += 4.0 * size * queries * part.hidden_size if part.output_dropout else 0.0
        elif isinstance(part, MixturePart):
            products = 6.0 * part.top_k * queries * part.hidden_size * part.intermediate_size / tensor
            moved = size * queries * part.top_k * (5 * part.intermediate_size / tensor + 4 * part.hidden_size)
        elif isinstance(part, NormPart):
            moved = queries * part.size * _norm_bytes(part, work)
        rank = 2.0 * queries * (back.low_rank[0] * (1.0 + runs * again[0]) + back.low_rank[1]) / tensor
        total.products += products * (1.0 + back.products + runs * again[0]) + rank
        total.attention += attention * (1.0 + 2.5 * back.attends + (0.0 if keeps_attention else runs * again[1]))
        total.moved += moved * (1.0 + 2.0 * back.is_reached + runs * again[1])


def _norm_bytes(part: NormPart, work: Workload) -> int:
    """Return the bytes a value that a norm's forward moves."""
    size = work.value_bytes
    if not part.is_rms or work.is_compiled:
        return 2 * size
    # to float32, square, mean, product, back, weight: 7 passes in float32 and 4 in the compute dtype
    return 28 + 4 * size if size < 4 else 5 * size + 8


def _add_scores(total: _Work, model: ModelParts, work: Workload, targets: float, tensor: int) -> None:
    if not model.is_language_model:
        return
    scored = targets * (MASKED_SHARE if model.task == "masked_lm" else 1.0)
    words = model.vocab_size / tensor
    total.products += 2.0 * scored * model.table_size * words * (1 + sum(model.trains_scores))
    # scores, float32 copies, log-softmax, and the same way back: 6 passes in float32 and 3 in the compute dtype
    total.moved += scored * words * (24 + 3 * work.value_bytes)
