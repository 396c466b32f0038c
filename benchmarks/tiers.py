"""Training with most values on disk against training in memory: the same GPT, the same steps, one run.

    python benchmarks/tiers.py [--hidden 768] [--layers 12] [--rows 8] [--length 128] [--share 0] [--steps 2] [--rounds 2]
    python benchmarks/tiers.py --hidden 1280 --layers 24 --rows 8 --only tiers        # half a billion parameters

`memory` is a plain loop with everything in memory; `deferred` and `in_backward` hold the model within a budget, by default the
smallest with which it can be trained (`--share 0`; 1 is what everything would take, values between lie between, with 2 everything
fits and there is room to spare), and update before a block's next forward, with clipping, or in the backward, without. Blocks are
computed again in the backward on all sides. `machine` measures matrix products of the model's width, and reading and writing one
file directly, 64 MiB at a time; the bound of a side is what its products take at that rate, or what its bytes take at these,
whichever is longer. Losses must be equal: all sides but `in_backward`, which does not clip, print the same ones. Run it under a
kernel memory limit to see that the budget holds.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python benchmarks/tiers.py ...

lets glibc ask for large pages: with a budget every large tensor takes fresh pages, and clearing small ones is a fifth of the CPU
time of a step.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sides
from benchmark_model import VOCABULARY, gpt_config, sizes_of_gpt


def _train(options: argparse.Namespace, model: Any, optimizer: Any, *, clips: bool) -> sides.Figures:
    import torch

    from modelzoo.runtime import clip_grad_norm

    model.train()
    times, losses = [], []
    for step in range(1 + options.steps):
        ids = torch.randint(1, VOCABULARY, (options.rows, options.length), generator=torch.Generator().manual_seed(step))
        start = time.perf_counter()
        loss = model(ids, labels=ids).loss
        loss.backward()
        if clips:
            clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
        losses.append(float(loss.detach()))
    count = sum(parameter.numel() for parameter in model.parameters())
    seconds = sum(times[1:]) / options.steps
    return {"step_s": seconds, "peak_mib": sides.peak_rss() / 2**20, "parameters_m": count / 1e6, "loss": losses[-1]}


def _memory(options: argparse.Namespace) -> sides.Figures:
    import torch

    from modelzoo import GPT2
    from modelzoo.config import ParallelConfig
    from modelzoo.runtime import connect, prepare

    torch.manual_seed(0)
    with connect(device="cpu") as world:
        model = prepare(
            GPT2.from_config(gpt_config(options.hidden, options.layers, options.length), "causal_lm"),
            world,
            ParallelConfig(recompute="blocks"),
        )
        return _train(options, model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), clips=True)


def _tiers(options: argparse.Namespace, when: str) -> sides.Figures:
    import torch

    from modelzoo import GPT2
    from modelzoo.config import MemoryConfig, ParallelConfig
    from modelzoo.runtime import connect, layout
    from modelzoo.runtime.tiers import TieredAdamW, tiers_of

    torch.manual_seed(0)
    budget = _budget(options, when)
    with connect(device="cpu") as world, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        memory = MemoryConfig.model_validate({"host": str(budget), "disk": {"path": folder}, "optimizer_update": when})
        lay_out = layout(world, ParallelConfig(recompute="blocks"), memory)
        model = GPT2.from_config(gpt_config(options.hidden, options.layers, options.length), "causal_lm", lay_out=lay_out)
        tiers = tiers_of(model)
        assert tiers is not None
        read, written = dict(tiers.traffic.read_bytes), dict(tiers.traffic.written_bytes)
        try:
            figures = _train(options, model, TieredAdamW(model.parameters(), tiers, lr=1e-4), clips=when != "in_backward")
            moved = {
                f"{name}_mb": (sum(now.values()) - sum(before.values())) / (1 + options.steps) / 1e6
                for name, before, now in (
                    ("read", read, tiers.traffic.read_bytes),
                    ("written", written, tiers.traffic.written_bytes),
                )
            }
        finally:
            tiers.close()
    return {**figures, **moved, "budget_mib": budget / 2**20}


def _budget(options: argparse.Namespace, when: str) -> int:
    """Return bytes for the model between the smallest that works and what everything takes, by `--share`."""
    from modelzoo.runtime.tiers.placement import place_units

    whole = place_units(
        sizes_of_gpt(options.hidden, options.layers, options.length),
        budget_bytes=None,
        has_disk=True,
        slots=3,
        how="plan",
        when=when,  # type: ignore[arg-type]  # one of the three
    )
    return int(whole.smallest_bytes + options.share * (whole.memory_bytes - whole.smallest_bytes))


def _machine(options: argparse.Namespace) -> sides.Figures:
    """Multiply matrices of the model's width, and write and read one file directly."""
    import mmap

    import torch

    from modelzoo import GPT2
    from modelzoo.config import ParallelConfig
    from modelzoo.layers import skip_initialization
    from modelzoo.plan import Workload, find_machine, plan_workload, read_parts
    from modelzoo.plan.probe import probe_products

    machine = probe_products(find_machine("this"), hidden_size=options.hidden, tokens=options.rows * options.length, seconds=2.0)
    with torch.device("meta"), skip_initialization():
        model = GPT2(gpt_config(options.hidden, options.layers, options.length), "causal_lm")
    work = Workload(lengths=(options.length,) * options.rows, recompute="blocks")
    operations = plan_workload(read_parts(model), work, ParallelConfig(data_shard=1, zero=0), machine).time.operations

    memory = mmap.mmap(-1, 64 * 2**20)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "file"
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECT", 0))
        rates = []
        for call in (os.pwritev, os.preadv):
            start = time.perf_counter()
            for place in range(8):
                call(file, [memory], place * len(memory))
            rates.append(8 * len(memory) / (time.perf_counter() - start) / 1e9)
        os.close(file)
    compute = operations / machine.flops["float32"]
    return {"write_gb_s": rates[0], "read_gb_s": rates[1], "products_s": compute}


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    trained = [name for name in figures if name != "machine"]
    lines = [
        f"{name:<12} {sides.median(figures[name], 'step_s'):7.2f} s a step   "
        f"peak {sides.median(figures[name], 'peak_mib'):7.0f} MiB   "
        f"{figures[name][0]['parameters_m']:.0f} M parameters   loss {figures[name][0]['loss']:.6f}"
        for name in trained
    ]
    lines += [
        f"{name:<12} speed / memory's {sides.ratio(figures, 'step_s', 'memory', name)}   "
        f"peak / memory's {sides.ratio(figures, 'peak_mib', name, 'memory')}"
        for name in trained
        if name != "memory"
    ]
    if "machine" in figures:
        read, write, products = (sides.median(figures["machine"], key) for key in ("read_gb_s", "write_gb_s", "products_s"))
        lines.append(
            f"machine      reads {read:.2f} GB/s, writes {write:.2f} GB/s, multiplies a step's matrices in {products:.2f} s"
        )
        for name in trained:
            moved = [figures[name][0].get(key, 0.0) for key in ("read_mb", "written_mb")]
            disk = moved[0] / 1e3 / read + moved[1] / 1e3 / write
            lines.append(
                f"{name:<12} step / bound {sides.median(figures[name], 'step_s') / max(products, disk):.2f}   "
                f"disk {disk:.2f} s for {moved[0]:.0f} MB read, {moved[1]:.0f} MB written"
            )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--steps", type=int, default=2, help="steps that are timed, after one that is not")
    parser.add_argument("--share", type=float, default=0.0, help="0: the smallest budget, 1: everything in memory, 2: and room")
    parser.add_argument("--folder", default=".", help="where the disk tier lies; a fast local disk")
    named: dict[str, sides.Side] = {
        "memory": _memory,
        "deferred": lambda options: _tiers(options, "deferred"),
        "in_backward": lambda options: _tiers(options, "in_backward"),
        "machine": _machine,
    }
    sides.main(named, parser, _report)
