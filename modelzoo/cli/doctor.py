"""`modelzoo doctor`: what this machine and this installation are, and the traps in them that are known."""

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from modelzoo.cli.console import columns, say, say_json
from modelzoo.cli.exchange_report import exchange_report
from modelzoo.errors import ConfigError
from modelzoo.launch import place_of
from modelzoo.quantities import counted

__all__ = ["Finding", "doctor", "examine", "finding_table"]

_GIB = 1024**3
WIDEST = 132
"""Characters of a line of a finding."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fact about the machine or the installation.

    Args:
        name: What was looked at.
        value: What was found.
        level: "ok"; "note" for what one should know; "problem" for what stops a run.
        advice: What to do, for notes and problems.
    """

    name: str
    value: str
    level: Literal["ok", "note", "problem"] = "ok"
    advice: str = ""


def doctor(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
    comm: Annotated[bool, typer.Option("--comm", help="Measure how fast processes exchange tensors here.")] = False,
    ranks: Annotated[int | None, typer.Option(min=1, help="Processes for --comm: by default one a GPU, or two.")] = None,
) -> None:
    """Show versions, cores, memory, disk, torch's backends and known traps; exit code 1 if something stops a run.

    With --comm: latency and bandwidth of all-gather, reduce-scatter and all-reduce on this machine's processes, or under torchrun
    or srun on those of the step.
    """
    if ranks is not None and not comm:
        raise ConfigError(f"--ranks {ranks} is for --comm; add it")
    if comm:
        exchange_report(ctx, ranks, as_json=as_json)
        return
    findings = list(examine(Path.cwd()))
    problems = sum(finding.level == "problem" for finding in findings)
    if as_json:
        say_json([dataclasses.asdict(finding) for finding in findings])
    else:
        say(finding_table(findings))
        say(f"\n {counted(problems, 'problem') if problems else 'no problem'} found")
    if problems:
        raise typer.Exit(1)


def finding_table(findings: Sequence[Finding]) -> str:
    """Return findings as a table, each once: level, name and value, with what to do below the value."""
    rows: list[list[str]] = []
    for finding in findings:
        lines = [*finding.value.splitlines(), *finding.advice.splitlines()] or [""]
        shown = [piece for line in lines for piece in textwrap.wrap(line, WIDEST, subsequent_indent="  ") or [""]]
        rows += [[finding.level, finding.name, shown[0]], *(["", "", line] for line in shown[1:])]
    return columns(rows)


def examine(folder: Path) -> Iterator[Finding]:
    """Yield the findings, cheap ones first.

    Args:
        folder: Where runs would be written.
    """
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    yield from _packages()
    yield _one_checkout()
    yield from _machine(folder)
    yield from _torch()
    yield from _run()
    yield from _hub()


def _packages() -> Iterator[Finding]:
    """Yield the version of every direct dependency, checked against the range that this version of modelzoo accepts."""
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires("modelzoo-hub") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(requirement.name, "not installed", "problem", f"pip install '{requirement}'")
            continue
        if requirement.specifier.contains(found, prereleases=True):
            yield Finding(requirement.name, found)
        else:
            yield Finding(requirement.name, found, "problem", f"expected {requirement}; pip install '{requirement}'")


def _one_checkout() -> Finding:
    """Return whether modelzoo and modelzoo.layers come from one place; a copied checkout with an old venv mixes two."""
    import modelzoo
    import modelzoo.layers

    root, layers = Path(str(modelzoo.__file__)).parent, Path(str(modelzoo.layers.__file__)).parent
    if layers.parent in (root, root.parent):
        return Finding("modelzoo", f"{importlib.metadata.version('modelzoo-hub')} in {root}")
    advice = f"modelzoo comes from {root} but modelzoo.layers from {layers}; install again from one checkout: pip install -e ."
    return Finding("modelzoo", "two checkouts are mixed", "problem", advice)


def _machine(folder: Path) -> Iterator[Finding]:
    """Yield cores, memory and the disk under `folder`."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None and threads.isdigit() and int(threads) < cores:
        advice = f"OMP_NUM_THREADS={threads} leaves cores unused; unset it for a single process, or set runtime.threads"
        yield Finding("cores", f"{cores}, OMP_NUM_THREADS={threads}", "note", advice)
    else:
        yield Finding("cores", str(cores))
    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB free"
    is_short = memory.available < 2 * _GIB
    yield Finding("memory", text, "note" if is_short else "ok", "BERT-base needs about 2 GiB to train" if is_short else "")
    disk = shutil.disk_usage(folder)
    text = f"{disk.free / _GIB:.1f} of {disk.total / _GIB:.1f} GiB free in {folder}"
    is_short = disk.free < 2 * _GIB
    yield Finding("disk", text, "note" if is_short else "ok", "a BERT-base checkpoint takes 1.3 GiB" if is_short else "")
    if not os.access(folder, os.W_OK):
        yield Finding("folder", str(folder), "problem", "runs cannot be written here; use output.folder=FOLDER")


def _torch() -> Iterator[Finding]:
    """Yield what torch can compute with and how its processes can talk."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        yield Finding("torch", f"cannot be imported: {error}", "problem", "pip install --force-reinstall torch")
        return
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            yield Finding(f"gpu {index}", f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB")
    else:
        is_cuda_build = torch.version.cuda is not None
        advice = "this torch was built for CUDA but sees no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield Finding("gpu", "none", "note", advice) if is_cuda_build else Finding("gpu", "none")
    yield Finding("cpu", f"{torch.backends.cpu.get_cpu_capability()}, {counted(torch.get_num_threads(), 'thread')}")
    backends = [name for name in ("gloo", "nccl") if dist.is_available() and dist.is_backend_available(name)]
    if backends:
        yield Finding("processes", f"ranks=N, torchrun or srun, over {', '.join(backends)}")
    else:
        advice = "runs on many processes need gloo or nccl; install a torch from pypi.org"
        yield Finding("processes", "one: this torch has no backend", "note", advice)


def _run() -> Iterator[Finding]:
    """Yield what a run would use if it were started here as it is."""
    import torch

    place = place_of(os.environ)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = f"cuda:{place.local_rank}" if gpus else "cpu"
    if place.world_size > 1:
        threads = max(cores // place.local_size, 1)
        met = f"{place.address}:{place.port}"
        yield Finding(
            "a run", f"rank {place.rank} of {place.world_size} on {device}, {counted(threads, 'thread')} each, meeting at {met}"
        )
    else:
        several = gpus or 2
        share = f"{counted(max(cores // several, 1), 'thread')} each"
        text = f"1 process on {device}, {counted(torch.get_num_threads(), 'thread')}; with ranks={several}: "
        yield Finding("a run", text + (f"one process a GPU, {share}" if gpus else f"{several} processes on cpu, {share}"))
    if gpus and place.local_size > gpus:
        advice = f"{place.local_size} processes of this machine need a GPU each; start fewer"
        yield Finding("gpus", f"{gpus} for {place.local_size} processes", "problem", advice)


def _hub() -> Iterator[Finding]:
    """Yield where models from the hub are kept and whether the hub is asked at all."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    place = next(parent for parent in (cache, *cache.parents) if parent.exists())
    if os.access(place, os.W_OK):
        yield Finding("hub cache", str(cache))
    else:
        yield Finding("hub cache", f"{cache} cannot be written", "note", "set HF_HOME to a folder of yours, or use local models")
    if constants.HF_HUB_OFFLINE:
        yield Finding("hub", "offline (HF_HUB_OFFLINE)", "note", "models and data come from the cache or from local folders only")
