"""Runs the sides of a comparison in turn, each in a fresh process, and prints their ratios.

A benchmark file calls `main(sides, ...)`. A side is a function that prints nothing and returns its figures as a dict of floats; it
runs in a process of its own, so that imports, allocators and thread pools of one side cannot touch another. Sides alternate
(A B C A B C ...), and the ratios are taken round by round before the median, so that a drift of the machine's speed cancels.
Absolute times on a shared machine are noise: a round during which other processes used much of the machine is marked.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

Figures = dict[str, float]
Side = Callable[[argparse.Namespace], Figures]


def peak_rss() -> int:
    """Return the largest resident size of this process so far, in bytes (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM; run this benchmark on Linux")


def main(
    sides: Mapping[str, Side], parser: argparse.ArgumentParser, report: Callable[[Mapping[str, Sequence[Figures]]], list[str]]
) -> None:
    """Run one side when asked to by `--side`, else all sides in turn.

    Args:
        sides: Name to function; the first is ours.
        parser: With the benchmark's own options.
        report: Turns the figures of every round into the lines to print.
    """
    parser.add_argument("--rounds", type=int, default=3, help="how often every side runs")
    parser.add_argument("--only", nargs="*", choices=list(sides), help="run these sides alone")
    parser.add_argument("--side", choices=list(sides), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(sides[options.side](options)))
        return
    chosen = [name for name in sides if not options.only or name in options.only]
    figures: dict[str, list[Figures]] = {name: [] for name in chosen}
    for round_number in range(options.rounds):
        for name in chosen:
            figures[name].append(_run(name, round_number))
    print("\n".join([machine(), *report(figures)]))


def on_ranks(side: Side, count: int = 2) -> Side:
    """Return a side that runs on several processes of one thread each; rank 0's figures count, with the largest peaks of all.

    Args:
        side: What every process runs; it finds RANK and WORLD_SIZE in its environment, as torchrun sets them.
        count: Number of processes.
    """

    def run(options: argparse.Namespace) -> Figures:
        if "RANK" in os.environ:
            import torch

            torch.set_num_threads(1)
            return side(options)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = str(found.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env={**os.environ, **common, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        outputs = [process.communicate()[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise SystemExit("a rank failed; its message is above")
        figures: list[Figures] = [json.loads(output.splitlines()[-1]) for output in outputs]
        largest = {key: max(one[key] for one in figures) for key in figures[0] if key.endswith("peak_mib")}
        return {**figures[0], **largest}

    return run


def _run(name: str, round_number: int) -> Figures:
    others = _foreign_cpu_s()
    start = time.perf_counter()
    command = [sys.executable, *sys.argv, "--side", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"side {name} failed:\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    share = (_foreign_cpu_s() - others - _children_cpu_s()) / (time.perf_counter() - start)
    shown = "  ".join(f"{key} {value:.4g}" for key, value in figures.items())
    warning = f"   (other processes used {share:.1f} cores: not clean)" if share > 0.2 else ""
    print(f"round {round_number + 1}  {name:<18} {shown}{warning}", file=sys.stderr, flush=True)
    return figures


_LAST_CHILDREN_S = 0.0


def _children_cpu_s() -> float:
    """Return the CPU seconds of the child that just ended."""
    global _LAST_CHILDREN_S
    times = psutil.Process().cpu_times()
    total = times.children_user + times.children_system
    spent, _LAST_CHILDREN_S = total - _LAST_CHILDREN_S, total
    return spent


def _foreign_cpu_s() -> float:
    """Return the CPU seconds of the whole machine so far."""
    times = psutil.cpu_times()
    return times.user + times.system


def ratio(figures: Mapping[str, Sequence[Figures]], key: str, above: str, below: str) -> str:
    """Return the median over the rounds of `above`'s figure over `below`'s, with the smallest and the largest."""
    if above not in figures or below not in figures:
        return "not run"
    pairs = [one[key] / other[key] for one, other in zip(figures[above], figures[below], strict=True)]
    return f"{statistics.median(pairs):.2f}  ({min(pairs):.2f} to {max(pairs):.2f} over {len(pairs)} rounds)"


def median(figures: Sequence[Figures], key: str) -> float:
    """Return the median of one figure over the rounds."""
    return statistics.median(one[key] for one in figures)


def machine() -> str:
    """Return a line about the machine and the versions."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    names = ("torch", "transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{psutil.cpu_count()} cores, {model}, Python {platform.python_version()}, {versions}, {time.strftime('%Y-%m-%d')}"
