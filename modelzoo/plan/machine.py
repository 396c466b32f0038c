"""What a machine can do: memory, rates of matrix products, bandwidths. Known ones by name, others from a file, and this one.

Rates are what can be reached, not what a data sheet says. Of the known accelerators the matrix products are the best of public
sweeps over shapes (gpu_benchmark's table after Bekman's mamf-finder: 792.1 of 989.4 Tflop/s on an H100 SXM, 267.9 of 312 on an A100
SXM), attention is FlashAttention-2's share of the peak (0.35 on an H100: Shah et al., 2024, abstract; 0.5 on an A100, the lower end
of Dao, 2023, abstract), memory runs at 0.9 of its bandwidth (STREAM triad), and links at 0.8 (large rings of NCCL; PCI Express 5.0,
4.0 of an A100, between device and host).
A power limit slows matrix products and attention by (limit / rated) ** 0.45: the exponent between the same table's H100 at 700 W
and at 350 W (PCIe: 499.5 Tflop/s on 114 of 132 multiprocessors).
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from modelzoo.errors import ConfigError, closest, listing
from modelzoo.quantities import counted
from modelzoo.runtime.memory import CONTEXT_BYTES, resident_bytes, total_bytes

__all__ = ["KNOWN", "Machine", "find_machine", "parse_amount"]

AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?(?:/s)?")
UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
POWER_EXPONENT = 0.45
MEMORY_SHARE = 0.9
LINK_SHARE = 0.8
PROGRAM_BYTES = 384 * 2**20
"""What a run on CPUs takes before it has a model: Python, torch with its compiler front, code of kernels, few data, a picture.
`modelzoo train bert-boolq` takes 383 MiB when it shares out its budget (torch 2.13)."""
Precision = Literal["float32", "bfloat16", "float16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What one rank has; bandwidths are in bytes a second and one direction."""

    name: str
    kind: Literal["host", "cuda"]
    """Whether ranks compute on CPUs, where device and host are one tier, or on accelerators."""
    device_memory: int = 0
    """Bytes of the accelerator that a process can have; 0 on a host."""
    host_memory: int
    """Bytes of the host's memory for one rank."""
    flops: Mapping[str, float]
    """By precision: operations a second of large matrix products."""
    attention_flops: float
    """Operations a second of fused attention."""
    memory_bandwidth: float
    """Of the memory that a rank computes in."""
    link_bandwidth: float
    """Between ranks."""
    bus_bandwidth: float = 20e9
    """Between an accelerator and its host, in each direction: what PCI Express 4.0 x 16 reaches (of 31.5e9)."""
    host_bandwidth: float = 60e9
    """Of the host's memory below an accelerator, for the part of it that one rank has: there blocks are updated."""
    first_touch: float = 2.5e9
    """Of memory that the system hands out for the first time: it clears each page; an ordinary server's core."""
    disk_read: float
    disk_write: float
    disk_bytes: int | None = None
    """Free on the disk; None where it is not known."""
    program_bytes: int = PROGRAM_BYTES
    """What a process takes on the host before there is a model: Python, torch and the data."""
    context_bytes: int = CONTEXT_BYTES
    """What the driver takes of an accelerator beside what torch allocates."""
    overlaps: bool = True
    """Whether exchanges and disk run beside the computing; the exchanges of CPU ranks share its cores."""

    @property
    def tier(self) -> str:
        """Where the model is: "device", or "host" where there is no other."""
        return "device" if self.kind == "cuda" else "host"

    @property
    def budget(self) -> int:
        """Bytes of that tier."""
        return self.device_memory if self.kind == "cuda" else self.host_memory


def _accelerator(
    name: str, *, memory: float, peak: float, reached: float, float32: float, attention: float, bandwidth: float, link: float,
    bus: float = 63e9, power: float = 1.0,
) -> Machine:  # fmt: skip
    """Build a known accelerator from its data sheet, its measured matrix products and its power limit."""
    slowed = power**POWER_EXPONENT
    return Machine(
        name=name,
        kind="cuda",
        device_memory=int(memory),
        host_memory=128 * 2**30,
        flops={"bfloat16": reached * slowed, "float16": reached * slowed, "float32": MEMORY_SHARE * float32 * slowed},
        attention_flops=attention * peak * slowed,
        memory_bandwidth=MEMORY_SHARE * bandwidth,
        link_bandwidth=LINK_SHARE * link,
        bus_bandwidth=LINK_SHARE * bus,
        disk_read=3e9,
        disk_write=1.5e9,
        program_bytes=3 * 2**30,
    )


KNOWN: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        _accelerator("a100-40gb", memory=39.4 * 2**30, peak=312e12, reached=267.9e12, float32=19.5e12, attention=0.5,
                     bandwidth=1.555e12, link=300e9, bus=31.5e9),
        _accelerator("a100-80gb", memory=79.2 * 2**30, peak=312e12, reached=267.9e12, float32=19.5e12, attention=0.5,
                     bandwidth=2.039e12, link=300e9, bus=31.5e9),
        _accelerator("h100-80gb", memory=79.1 * 2**30, peak=989.4e12, reached=792.1e12, float32=66.9e12, attention=0.35,
                     bandwidth=3.35e12, link=450e9),
        _accelerator("h100-96gb-500w", memory=95.0 * 2**30, peak=989.4e12, reached=792.1e12, float32=66.9e12, attention=0.35,
                     bandwidth=2.4e12, link=450e9, power=500 / 700),
        _accelerator("h200-141gb", memory=139.8 * 2**30, peak=989.4e12, reached=792.1e12, float32=66.9e12, attention=0.35,
                     bandwidth=4.8e12, link=450e9),
    )
}  # fmt: skip
"""By name; host and disk are those of an ordinary server and can be said otherwise."""


def find_machine(name: str, **changes: object) -> Machine:
    """Return a machine.

    Args:
        name: A key of `KNOWN`, "this", or a YAML or JSON file with the fields of `Machine`; `like` in it names a known one to
            start from.
        **changes: Fields to replace; None leaves them.

    Raises:
        ConfigError: It is not known, or a figure is impossible; the message names it.
    """
    if name == "this":
        found = this_machine()
    elif name in KNOWN:
        found = KNOWN[name]
    elif Path(name).is_file():
        found = _read(Path(name))
    else:
        near = closest(name, [*KNOWN, "this"])
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"--machine {name}: expected this, a YAML or JSON file, or one of {', '.join(KNOWN)}; {hint}found no such file"
        )
    wanted: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    if "device_memory" in wanted and found.kind == "host":
        wanted["host_memory"] = min(wanted.pop("device_memory"), wanted.get("host_memory", found.host_memory))
    return dataclasses.replace(found, **wanted)


def this_machine() -> Machine:
    """Return this machine by what can be known without measuring: CPU figures are of an ordinary server's core."""
    if torch.cuda.is_available():
        _, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name().lower()
        like = next((each for each in KNOWN if each.partition("-")[0] in name), "a100-80gb")
        return dataclasses.replace(KNOWN[like], name=f"this ({name})", device_memory=total, host_memory=total_bytes())
    cores = len(os.sched_getaffinity(0))
    rate = 60e9 * cores  # float32, AVX2 at 2.5 GHz, as two fused units of 8 reach
    free = shutil.disk_usage(Path.cwd()).free
    return Machine(
        name=f"this ({counted(cores, 'core')})",
        kind="host",
        host_memory=total_bytes(),
        flops={"float32": rate, "bfloat16": rate / 100, "float16": rate / 100},
        attention_flops=0.5 * rate,
        memory_bandwidth=8e9 * cores,
        link_bandwidth=1.5e9,
        disk_read=1.0e9,
        disk_write=0.7e9,
        disk_bytes=free,
        program_bytes=max(resident_bytes(), PROGRAM_BYTES),
        context_bytes=0,
        overlaps=False,
    )


def parse_amount(text: str, *, bare: str, option: str) -> int:
    """Return bytes, or bytes a second.

    Args:
        text: "80GB", "74.5GiB", "1.5 GB/s", or a bare number.
        bare: Unit of a bare number, "GiB" or "GB".
        option: Whose value it is, for messages.

    Raises:
        ConfigError: It is no amount, or not above 0.
    """
    found = AMOUNT.fullmatch(text.strip())
    size = int(float(found[1]) * UNITS[found[2] or bare]) if found is not None else 0
    if size <= 0:
        raise ConfigError(f"{option} {text}: expected an amount above 0 such as 80, 80GB or 74.5GiB (a bare number is {bare})")
    return size


def _read(path: Path) -> Machine:
    """Return the machine of a file, or one error with all that is wrong in it."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected YAML or JSON, found {type(error).__name__}: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys such as device_memory and flops, found {type(values).__name__}")
    fields = {field.name: field for field in dataclasses.fields(Machine)}
    base = values.pop("like", None)
    problems = []
    if base is not None and base not in KNOWN:
        problems.append(f"like: expected one of {', '.join(KNOWN)}, found {base!r}")
    read: dict[str, Any] = {} if base not in KNOWN else {name: getattr(KNOWN[base], name) for name in fields}
    read |= {"name": path.stem}
    for key, value in values.items():
        if key not in fields:
            near = closest(str(key), fields)
            problems.append(f"{key}: is not a figure of a machine{f'; did you mean {near[0]}?' if near else ''}")
            continue
        wanted, problem = _figure(key, value, read.get("flops"))
        read[key] = wanted
        problems += [] if problem is None else [problem]
    needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in read]
    problems += [f"{name}: is missing; give it, or like: a known machine" for name in needed]
    if problems:
        raise ConfigError(f"{path}: {listing(problems)}")
    return Machine(**read)


def _figure(key: str, value: object, known: object) -> tuple[Any, str | None]:
    """Return a figure as its field takes it, and what is wrong with it."""
    if key in ("name", "overlaps"):
        return value, None
    if key == "kind":
        return value, None if value in ("host", "cuda") else f"kind: expected host or cuda, found {value!r}"
    if key == "flops":
        base = dict(known) if isinstance(known, Mapping) else {}
        given = value if isinstance(value, dict) else {}
        good = {name: number for name, rate in given.items() if (number := _number(rate)) is not None}
        if not given or len(good) < len(given) or not set(good) <= {"float32", "bfloat16", "float16"}:
            return value, f"flops: expected rates above 0 by precision, as {{bfloat16: 6.8e14, float32: 6e13}}, found {value!r}"
        return base | good, None
    number = _number(value)
    if number is None and isinstance(value, str):
        try:
            number = float(parse_amount(value, bare="B", option=key))
        except ConfigError as error:
            return value, str(error)
    if number is None:
        return value, f"{key}: expected a number above 0, found {value!r}"
    return (int(number) if key.endswith(("_memory", "_bytes")) else number), None


def _number(value: object) -> float | None:
    """Return a number above 0; YAML reads 1e9 without a dot as text."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None
