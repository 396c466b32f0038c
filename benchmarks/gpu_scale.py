"""Bigger than an accelerator: models whose states live in the host's memory and on disk, against everything on the device.

    python benchmarks/gpu_scale.py                  # one accelerator, at most 8 minutes; a row is printed as soon as it is there
    python benchmarks/gpu_scale.py --only probe llama-16k
    python benchmarks/gpu_scale.py --pretend        # tiny shapes on a CPU, part of whose memory is taken for a device's

Every row is a process of its own: bfloat16 compute, float32 parameters and moments, blocks computed again, AdamW. The cases:

bert-11gib     BERT-large, 128 tokens a row, 11 GiB of the device: the most rows of a plain loop with recomputation, and of `below`
llama-64k      Llama 3.1 8B's shape, 65,536 tokens a step: everything on the device, and everything below 40 GiB of it
llama-16k      the same with 16,384 tokens, and `fully_shard` with its own CPUOffloadPolicy
llama-clipped  65,536 tokens with clipping, updated before each block's next forward, and the same after the backward
qwen-14b       Qwen2.5 14B's shape, what fits on the device and the rest on the host
20b            20 billion parameters on device, host and disk

resident   everything on the device, updated in the backward, so that no gradients wait there
below      blocks in the host's memory, two copies up and one down a step beside the computing, updated on the host
stock      `fully_shard(offload_policy=CPUOffloadPolicy())` with torch's fused AdamW on the host

TFLOPS are 6 x parameters x tokens a second; the forward that is computed again does not count. Of `bound`, the longest of a step's
products, copies and updates on the host at the probed rates, the share is shown that the step reaches.
"""

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One measurement."""

    case: str
    side: str
    shape: str
    rows: int
    length: int
    memory: dict[str, Any] = field(default_factory=dict)
    """Of the tiers; empty for a side without."""
    clip: float | None = None


IN_BACKWARD = {"optimizer_update": "in_backward"}
ROWS = (
    Row("bert-11gib", "plain", "bert-large", 64, 128, {"device": "11GiB"}),
    Row("bert-11gib", "below", "bert-large", 64, 128, {"device": "11GiB", **IN_BACKWARD}),
    Row("llama-16k", "resident", "llama-8b", 4, 4096, {"device": "95%", **IN_BACKWARD}),
    Row("llama-16k", "below", "llama-8b", 4, 4096, {"device": "40GiB", **IN_BACKWARD}),
    Row("llama-16k", "stock", "llama-8b", 4, 4096),
    Row("llama-64k", "resident", "llama-8b", 16, 4096, {"device": "95%", **IN_BACKWARD}),
    Row("llama-64k", "below", "llama-8b", 16, 4096, {"device": "48GiB", **IN_BACKWARD}),
    Row("llama-clipped", "deferred", "llama-8b", 16, 4096, {"device": "80GiB", "optimizer_update": "deferred"}, 1.0),
    Row("llama-clipped", "step", "llama-8b", 16, 4096, {"device": "80GiB", "optimizer_update": "step"}, 1.0),
    Row("qwen-14b", "below", "qwen-14b", 8, 4096, {"device": "auto", "host": "auto", **IN_BACKWARD}),
    Row("20b", "below", "20b", 2, 4096, {"device": "auto", "host": "auto", "disk": {"path": "TIERS"}, **IN_BACKWARD}),
)
SHAPES: dict[str, dict[str, int]] = {
    "llama-8b": {"vocab_size": 128256, "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "intermediate_size": 14336},
    "qwen-14b": {"vocab_size": 152064, "hidden_size": 5120, "num_layers": 48, "num_heads": 40, "intermediate_size": 13824},
    "20b": {"vocab_size": 128256, "hidden_size": 6144, "num_layers": 47, "num_heads": 48, "intermediate_size": 16384},
    "bert-large": {"vocab_size": 30522, "hidden_size": 1024, "num_layers": 24, "num_heads": 16, "intermediate_size": 4096},
}
PRETENDED: dict[str, int] = {"vocab_size": 96, "hidden_size": 64, "num_layers": 4, "num_heads": 4, "intermediate_size": 128}


def config_of(row: Row, *, is_pretended: bool) -> Any:
    """Return the config of a row's model."""
    from modelzoo import BertConfig, LlamaConfig

    sizes = PRETENDED if is_pretended else SHAPES[row.shape]
    if row.shape == "bert-large":
        return BertConfig(**sizes, max_positions=512, type_vocab_size=2)
    heads = sizes["num_heads"]
    return LlamaConfig(
        **sizes,
        num_key_value_heads=max(heads // 4, 1) if is_pretended else 8,
        head_size=sizes["hidden_size"] // heads,
        max_positions=8192,
        rope_theta=5e5,
    )


def build(row: Row, world: Any, folder: str, *, is_pretended: bool) -> tuple[Any, Any, Any]:
    """Return a row's model with values, its optimizer and its tiers."""
    import torch

    from modelzoo import Bert, Llama
    from modelzoo.config import MemoryConfig, ParallelConfig
    from modelzoo.layers import skip_initialization
    from modelzoo.plan import Workload, read_parts
    from modelzoo.runtime import materialise, prepare
    from modelzoo.runtime.memory import CONTEXT_BYTES
    from modelzoo.runtime.tiers import TieredAdamW, attach_tiers
    from modelzoo.runtime.tiers.link import Link
    from modelzoo.training.reserve import activation_bytes

    config = config_of(row, is_pretended=is_pretended)
    with torch.device("meta"), skip_initialization():
        model = Bert(config, "classification") if row.shape == "bert-large" else Llama(config, "causal_lm")
    precision = "float32" if is_pretended else "bfloat16"
    work = Workload(lengths=(row.length,) * row.rows, precision=precision, recompute="blocks", is_host=is_pretended)
    reserved = activation_bytes(read_parts(model), work) + (0 if is_pretended else CONTEXT_BYTES)
    if row.side == "stock":
        _shard_stock(model)
        for module in reversed(list(model.modules())):
            module.to_empty(device="cpu", recurse=False)
        fill(model)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True), None
    uses_tiers = row.side != "plain"
    prepare(model, world, ParallelConfig(precision=precision, recompute="blocks"), for_tiers=uses_tiers)
    if not uses_tiers:
        materialise(model, world.device)
        fill(model)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True), None
    memory = MemoryConfig.model_validate(json.loads(json.dumps(row.memory).replace("TIERS", folder)))
    placement = pretended_placement(row, model, memory) if is_pretended else None
    link = Link(world.device, is_apart=True)
    tiers = attach_tiers(model, world, memory, reserved_bytes=reserved, is_filled=False, link=link, placement=placement)
    fill(model)
    return model, TieredAdamW(model.parameters(), tiers, lr=1e-5), tiers


def pretended_placement(row: Row, model: Any, memory: Any) -> Any:
    """Return the placement under a pretended device that has room for half of the blocks, all or none as the row says."""
    from modelzoo.runtime.tiers import sizes_of
    from modelzoo.runtime.tiers.device_placement import HOST_SCRATCH_BYTES, place_below_device

    sizes, has_disk = sizes_of(model), memory.disk.path is not None
    options: dict[str, Any] = {"has_disk": has_disk, "slots": 3, "how": "plan", "when": memory.optimizer_update}
    whole = place_below_device(sizes, device_bytes=None, host_bytes=None, **options)
    share = {"resident": 1.0, "below": 0.5 if row.case in ("qwen-14b", "20b") else 0.0}.get(row.side, 0.0)
    device = int(whole.smallest_bytes + share * (whole.memory_bytes - whole.smallest_bytes))
    host = HOST_SCRATCH_BYTES + 20 * max(unit.shard for unit in sizes) if has_disk else None
    return place_below_device(sizes, device_bytes=device, host_bytes=host, **options)


def _shard_stock(model: Any) -> None:
    """Shard a model as torch's own offloading does it, with blocks computed again."""
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import checkpoint

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.shard_units():
        forward = block.forward
        block.forward = lambda *args, forward=forward, **options: checkpoint(forward, *args, use_reentrant=False, **options)
        fully_shard(block, mp_policy=policy, offload_policy=CPUOffloadPolicy())
    fully_shard(model, mp_policy=policy, offload_policy=CPUOffloadPolicy())


def fill(model: Any) -> None:
    """Give parameters values: matrices small random ones, vectors ones; and compute the buffers."""
    import torch

    from modelzoo.sharded import held, write_local

    model.init_weights(only=())
    for parameter in model.parameters():
        local = held(parameter)
        values = torch.ones(local.shape, device=local.device)
        if local.dim() > 1:
            values.normal_(0.0, 0.02)
        write_local(parameter, values)


def measure(row: Row, steps: int, *, is_pretended: bool) -> dict[str, float]:
    """Take a row's steps and return its figures."""
    import torch

    from modelzoo.runtime import clip_grad_norm, connect

    device = device_of(is_pretended=is_pretended)
    started = time.perf_counter()
    torch.manual_seed(0)
    with connect(device=device) as world, tempfile.TemporaryDirectory(dir=".") as folder:
        world.joined()
        model, optimizer, tiers = build(row, world, folder, is_pretended=is_pretended)
        built_s = time.perf_counter() - started
        count = sum(parameter.numel() for parameter in model.parameters())
        vocabulary = model.config.vocab_size
        if not is_pretended:
            torch.cuda.reset_peak_memory_stats()
        times, loss = [], math.nan
        before: dict[str, int] = {}
        for step in range(1 + steps):
            if step == 1 and tiers is not None:
                before = tiers.link.moved_bytes
            ids = torch.randint(1, vocabulary, (row.rows, row.length), device=device)
            synchronise(device)
            start = time.perf_counter()
            labels = torch.zeros(row.rows, dtype=torch.long, device=device) if row.shape == "bert-large" else ids
            found = model.train()(ids, labels=labels).loss
            found.backward()
            if row.clip is not None:
                clip_grad_norm(model.parameters(), row.clip)
            optimizer.step()
            optimizer.zero_grad()
            loss = float(found.detach())
            synchronise(device)
            times.append(time.perf_counter() - start)
        seconds = sum(times[1:]) / steps
        tokens = row.rows * row.length
        figures = {
            "parameters_b": count / 1e9,
            "step_s": seconds,
            "tokens_s": tokens / seconds,
            "tflops": 6 * count * tokens / seconds / 1e12,
            "built_s": built_s,
            "loss": loss,
            "device_gib": peak_device(device) / GIB,
            "host_gib": peak_host() / GIB,
        }
        if tiers is not None:
            moved = tiers.link.moved_bytes
            figures |= {name: (moved[name] - before[name]) / steps / 1e9 for name in moved}
            figures |= {
                "planned_device_gib": tiers.placement.memory_bytes / GIB,
                "planned_host_gib": tiers.placement.host_bytes / GIB,
                "waited_s": tiers.waited_s / (1 + steps),
                "disk_gib": tiers.placement.disk_bytes / GIB,
                "pinned_gib": tiers.link.pinned_mib / 2**10,
                "below": sum(unit.is_streamed for unit in tiers.units) / len(tiers.units),
            }
            tiers.close()
        return figures


def device_of(*, is_pretended: bool) -> Any:
    """Return the accelerator, or the CPU that is taken for one."""
    import torch

    found = None if is_pretended else torch.accelerator.current_accelerator()
    if found is None and not is_pretended:
        sys.exit("gpu_scale.py: no accelerator is here; --pretend runs its logic on a CPU")
    return torch.device("cpu") if found is None else torch.device(found.type, 0)


def synchronise(device: Any) -> None:
    """Wait until an accelerator has done what it was given."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def peak_device(device: Any) -> int:
    """Return the most that torch has allocated of a device."""
    import torch

    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


def peak_host() -> int:
    """Return the most that this process had in the host's memory."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def probe(*, is_pretended: bool) -> dict[str, float]:
    """Measure what bounds a step: products, both directions of the bus alone and together, pinning, the update on the host."""
    import torch

    from modelzoo.runtime.tiers.link import Link

    device = device_of(is_pretended=is_pretended)
    link, elements = Link(device, is_apart=True), 2**16 if is_pretended else 2**28
    start = time.perf_counter()
    host = link.on_host(elements, is_pinned=True)
    host.fill_(1.0)
    figures = {"pin_gb_s": host.nbytes / (time.perf_counter() - start) / 1e9}
    there = link.on_device(elements)
    for name, copy in (("up_gb_s", lambda: link.to_device(there, host)), ("down_gb_s", lambda: link.to_host(host, there))):
        copy()
        start = time.perf_counter()
        for _ in range(4):
            copy()
        figures[name] = 4 * host.nbytes / (time.perf_counter() - start) / 1e9
    figures["both_gb_s"] = both_ways(link, host, there)
    size = 128 if is_pretended else 8192
    left = torch.randn(size, size, device=device, dtype=torch.float32 if is_pretended else torch.bfloat16)
    for turn in range(12):
        if turn == 2:
            synchronise(device)
            start = time.perf_counter()
        left @ left
    synchronise(device)
    figures["products_tflops"] = 10 * 2 * size**3 / (time.perf_counter() - start) / 1e12
    figures["adamw_g_s"] = adamw_rate(elements // 4)
    link.close()
    return figures


def both_ways(link: Any, host: Any, there: Any) -> float:
    """Return the bytes a second of copies in both directions at once, added up."""
    from concurrent.futures import ThreadPoolExecutor

    half = len(host) // 2
    start = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        up = threads.submit(lambda: [link.to_device(there[:half], host[:half]) for _ in range(4)])
        down = threads.submit(lambda: [link.to_host(host[half:], there[half:]) for _ in range(4)])
        up.result()
        down.result()
    return 4 * host.nbytes / (time.perf_counter() - start) / 1e9


def adamw_rate(elements: int) -> float:
    """Return billions of parameters a second that the host updates in two threads."""
    import torch

    from modelzoo.runtime.tiers.adamw import update_unit
    from modelzoo.runtime.tiers.pieces import Scratch
    from modelzoo.runtime.tiers.unit import KINDS, MemoryRegion, Place, Unit

    parameter = torch.nn.Parameter(torch.zeros(elements))
    unit = Unit("", torch.nn.Module(), (Place(parameter, 0, elements, (elements,)),), elements, dict.fromkeys(KINDS, "memory"))
    unit.regions |= {kind: MemoryRegion(torch.zeros(elements)) for kind in ("exp_avg", "exp_avg_sq")}
    options = {id(parameter): {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 1}}
    scratch, gradients = Scratch(), torch.ones(elements)
    for turn in range(3):
        if turn == 1:
            start = time.perf_counter()
        update_unit(unit, options, None, {0: gradients}, scratch)
    return 2 * elements / (time.perf_counter() - start) / 1e9


def run_row(number: int, options: argparse.Namespace, seconds: float) -> dict[str, float] | str:
    """Measure a row in a process of its own, with as many rows as it takes; return its figures or what went wrong."""
    command = [sys.executable, __file__, "--row", str(number), "--steps", str(options.steps)]
    command += ["--pretend"] if options.pretend else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        return "no time left"
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if found:
        figures: dict[str, float] = json.loads(found[-1])
        return figures
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:160] if lines else f"ended with {done.returncode}"


def shown(figures: dict[str, float]) -> str:
    """Return a row's figures in one line."""
    text = (
        f"{figures['parameters_b']:6.2f} B   {figures['step_s']:7.3f} s   {figures['tokens_s']:9.0f} tokens/s   "
        f"{figures['tflops']:6.1f} TFLOPS   device {figures['device_gib']:6.1f}   host {figures['host_gib']:6.1f} GiB"
    )
    if "below" in figures:
        planned = f"planned {figures['planned_device_gib']:.1f} + {figures['planned_host_gib']:.1f} + {figures['disk_gib']:.1f} GiB"
        copied = f"up {figures['host>device']:.1f} down {figures['device>host']:.1f} GB"
        text += f"   {figures['below']:.0%} below, {planned}, {copied}, waited {figures['waited_s']:.2f} s"
    return f"{text}   loss {figures['loss']:.3f}   built in {figures['built_s']:.0f} s"


def bound(figures: dict[str, float], rates: dict[str, float]) -> float:
    """Return the seconds that a step cannot do without: products with one forward again, copies, updates on the host."""
    products = figures["tflops"] * figures["step_s"] * 8 / 6 / rates["products_tflops"]
    copies = max(figures.get("host>device", 0) / rates["up_gb_s"], figures.get("device>host", 0) / rates["down_gb_s"])
    return max(products, copies, figures.get("below", 0) * figures["parameters_b"] / max(rates["adamw_g_s"], 1e-9))


def most_rows(row: Row, steps: int, *, is_pretended: bool) -> dict[str, float]:
    """Double the rows of BERT until the device is full, and return the figures of the most that it took, with their number."""
    import torch

    best: dict[str, float] = {}
    for rows in (row.rows * 2**power for power in range(1 if is_pretended else 7)):
        try:
            with limited(row, is_pretended=is_pretended):
                figures = measure(
                    Row(row.case, row.side, row.shape, rows, row.length, row.memory), steps, is_pretended=is_pretended
                )
        except (torch.OutOfMemoryError, ValueError):
            break
        best = {**figures, "rows": rows, "examples_s": rows / figures["step_s"]}
    if not best:
        raise ValueError(f"{row.rows} rows are too many")
    return best


@contextlib.contextmanager
def limited(row: Row, *, is_pretended: bool) -> Iterator[None]:
    """Let torch allocate no more than the row's device budget, also for the side without tiers."""
    import torch

    from modelzoo.config.memory import parse_size
    from modelzoo.runtime.memory import limit_device, total_bytes

    if not is_pretended:
        device = torch.device("cuda", 0)
        torch.cuda.empty_cache()
        limit_device(device, parse_size(row.memory["device"], total_bytes(device)))
    yield


def main() -> None:
    """Measure one row, or all of them with a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = ["probe", *dict.fromkeys(row.case for row in ROWS)]
    parser.add_argument("--only", nargs="*", choices=cases, default=cases)
    parser.add_argument("--steps", type=int, default=2, help="steps that are timed, after one that is not")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no further row is begun")
    parser.add_argument("--pretend", action="store_true", help="tiny shapes on a CPU")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is not None:
        row = ROWS[options.row]
        if options.pretend:
            row = replace(row, rows=4, length=16)
        run = most_rows if row.shape == "bert-large" else measure
        print(json.dumps(run(row, options.steps, is_pretended=options.pretend)), flush=True)
        return
    ends = time.monotonic() + 60 * options.minutes
    rates = probe(is_pretended=options.pretend) if "probe" in options.only else {}
    if rates:
        print("probe   " + "   ".join(f"{name} {value:.2f}" for name, value in rates.items()), flush=True)
    first: dict[str, float] = {}
    for number, row in enumerate(ROWS):
        if row.case not in options.only:
            continue
        found = run_row(number, options, ends - time.monotonic())
        name = f"{row.case:<14} {row.side:<9}"
        if isinstance(found, str):
            print(f"{name} {found}", flush=True)
            continue
        first.setdefault(row.case, found["step_s"])
        reached = f"   {bound(found, rates) / found['step_s']:.2f} of bound" if rates else ""
        rows = f"   {found['rows']:.0f} rows, {found['examples_s']:.1f} examples/s" if "rows" in found else ""
        print(f"{name} {shown(found)}{rows}{reached}   speed {first[row.case] / found['step_s']:.2f} of the first", flush=True)


if __name__ == "__main__":
    main()
