"""Reads hostile mutants of every kind of file, each in a process that is watched, and says what was wrong with the answer.

    python tests/reliability/fuzz.py "a model's config" 200 1000    # mutants 200 to 999 of one target

Right is an error of modelzoo that names a file or the folder, or what the reference reads. Wrong is any other exception, a hang,
a crash, memory, a file outside of the folder, or another result.
"""

import json
import math
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 20.0
"""Of one mutant, on a machine that does other things too; nearly all take milliseconds."""
SLOW_S = 5.0
"""Processor seconds of one mutant."""
GROWTH_BYTES = 256 * 2**20
"""How much more memory one mutant may take than all before it."""
ADDRESS_BYTES = 3 * 2**30
"""Address space beyond what the process has at the start."""
MESSAGE_CHARACTERS = 8000
ANSWERS = 100
"""Descriptor of what a process says of its mutants."""


@dataclass
class Tally:
    """What came of some mutants of a target."""

    counts: Counter[str] = field(default_factory=Counter)
    """By kind of outcome: refused, read, faults."""
    faults: list[str] = field(default_factory=list)
    """A line for each wrong outcome: number of the mutant, and what was wrong."""


def fuzz(target: str, first: int, count: int) -> Tally:
    """Read mutants of a target; a process that hangs or dies is one fault, and another goes on after it."""
    tally = Tally()
    number = first
    while number < first + count:
        number = _watch(target, number, first + count, tally)
    return tally


def _watch(target: str, first: int, end: int, tally: Tally) -> int:
    """Read what a process says of its mutants, and return the number of the one after the last that it spoke of."""
    command = [sys.executable, str(HERE / "fuzz.py"), target, str(first), str(end)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, bufsize=0, stdout=subprocess.PIPE, stderr=errors, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
        assert process.stdout is not None
        number, limit, is_ready = first, 120.0, False
        while number < end:
            ready, _, _ = select.select([process.stdout], [], [], limit)
            line = process.stdout.readline() if ready else b""
            if not line:
                break
            kind, text = json.loads(line)
            if is_ready:
                _note(tally, number, kind, text)
                number += 1
            is_ready = True
            limit = LIMIT_S
        if number < end:
            is_hanging = process.poll() is None and not ready
            process.kill()
            process.wait()
            errors.seek(0)
            last = errors.read().decode(errors="replace").splitlines()[-1:]
            if not is_ready:
                raise RuntimeError(f"{target}: what is right was not read: {last}")
            _note(tally, number, "fault", "hangs" if is_hanging else f"the process ended with {process.returncode}: {last}")
            number += 1
        process.stdout.close()
        process.wait()
    return number


def _note(tally: Tally, number: int, kind: str, text: str) -> None:
    tally.counts[kind] += 1
    if kind == "fault":
        tally.faults.append(f"{number}: {text}")


def serve(name: str, first: int, end: int) -> None:
    """Read mutants one after the other and write one line for each."""
    from fuzz_targets import TARGETS
    from mutants import CANARY

    opened: list[str] = []
    sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" and CANARY in str(found[0]) else None)
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as place:
        good = Path(place) / "good"
        good.mkdir()
        target.make(good)
        expected = target.read(good)
        if target.reference is not None:
            assert same(target.reference(good), expected), f"{expected} is not what the reference reads"
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_BYTES, resource.RLIM_INFINITY))
        _say("ready", "")
        for number in range(first, end):
            folder = Path(place) / "a" / "b" / "hostile"
            shutil.copytree(good, folder)
            (folder.parent / CANARY).write_bytes(b"\0" * 8)
            opened.clear()
            what = target.mutate(folder, random.Random(f"{name} {number}"))
            kind, text = _outcome(target, folder, expected)
            if opened:
                kind, text = "fault", f"{opened[0]} was opened"
            _say(kind, f"{what}: {text}")
            shutil.rmtree(Path(place) / "a")


def _outcome(target, folder: Path, expected: object) -> tuple[str, str]:
    from modelzoo.errors import ModelZooError

    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        found = target.read(folder)
    except ModelZooError as error:
        kind, text = _refusal(str(error), folder)
    except BaseException as error:  # the Rust side panics with one that is no Exception
        return "fault", f"{type(error).__name__}: {str(error)[:300]}"
    else:
        kind, text = ("read", "") if same(found, expected) else _compared(target, folder, found)
    seconds, grown = time.process_time() - started, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if kind != "fault" and grown > GROWTH_BYTES:
        return "fault", f"{grown >> 20} MiB more memory; {text}"
    if kind != "fault" and seconds > SLOW_S:
        return "fault", f"{seconds:.1f} s; {text}"
    return kind, text


def _refusal(message: str, folder: Path) -> tuple[str, str]:
    names = [str(folder), *(path.name for path in folder.rglob("*") if path.is_file())]
    if len(message) > MESSAGE_CHARACTERS:
        return "fault", f"a message of {len(message)} characters: {message[:300]}"
    return ("refused", message[:200]) if any(name in message for name in names) else ("fault", f"names no file: {message[:300]}")


def _compared(target, folder: Path, found: object) -> tuple[str, str]:
    """Compare with the reference, where one reads the mutant too; damage that a hash must tell has none."""
    if target.reference is None:
        return "fault", f"read as something else: {str(found)[:300]}"
    try:
        theirs = target.reference(folder)
    except BaseException as error:
        if target.needs_reference:
            return "fault", f"read, where the reference says {type(error).__name__}: {str(error)[:200]}; found {str(found)[:200]}"
        return "read alone", f"the reference says {type(error).__name__}: {str(error)[:200]}"
    return ("read", "") if same(theirs, found) else ("fault", f"expected {str(theirs)[:300]}, found {str(found)[:300]}")


def same(first: object, second: object) -> bool:
    """Return whether two results are equal, numbers within 1e-4; NaN equals NaN."""
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(same(one, two) for one, two in zip(first, second, strict=True))
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(first) and math.isnan(second))
    return first == second


def _say(kind: str, text: str) -> None:
    os.write(ANSWERS, (json.dumps([kind, text]) + "\n").encode())


if __name__ == "__main__":
    os.dup2(1, ANSWERS)  # what libraries print goes elsewhere
    os.dup2(2, 1)
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
