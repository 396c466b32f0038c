"""The folder of a run: made new for every run, locked while one process works in it, and complete enough to be understood later."""

import fcntl
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import psutil
import torch

from modelzoo.config import RunSettings, dump_settings
from modelzoo.errors import InputError, SaveError
from modelzoo.runtime import Report, World, readable_size
from modelzoo.training.forecast import Outcome

__all__ = ["RunDirectory", "environment"]

MOST_RUNS = 10_000
LOOKS, LOOK_S = 5, 0.02
PACKAGES = ("modelzoo-hub", "torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy")


class RunDirectory:
    """The paths of a run.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.final = path / "final"
        self.metrics = path / "metrics.jsonl"
        self.timeline = path / "timeline.jsonl"
        self.log = path / "log.txt"
        self.resolved = path / "resolved.yaml"
        self.result = path / "result.json"
        self.plot = path / "loss.png"
        self.report = path / "report.html"

    @classmethod
    def create(cls, parent: Path, name: str) -> "RunDirectory":
        """Make the first free folder of `name-001`, `name-002`, ...; two processes never get the same one.

        Args:
            parent: Folder of all runs; made if missing.
            name: Of the recipe or the run.

        Raises:
            SaveError: The folder cannot be made.
        """
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for number in range(1, MOST_RUNS):
                path = parent / f"{name}-{number:03}"
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise SaveError(f"output.folder={parent}: expected a folder, found a file; set output.folder to another") from error
        except OSError as error:
            raise SaveError(f"{parent / name}-...: no run folder can be made: {error.strerror}; set output.folder") from error
        raise SaveError(f"{parent}: holds {MOST_RUNS - 1} runs called {name}; set output.name or output.folder to another")

    @classmethod
    def existing(cls, path: Path) -> "RunDirectory":
        """Return the run in a folder.

        Raises:
            InputError: It is not the folder of a run.
        """
        if not (path / "resolved.yaml").is_file():
            raise InputError(f"{path}: expected the folder of a run, with resolved.yaml; found {_what_is_there(path)}")
        return cls(path)

    def describe(self, settings: RunSettings, data: Mapping[str, Any], world: World, recipe_file: Path | None = None) -> None:
        """Write what the run is made of: recipe, resolved settings, command, versions and machine, data.

        Args:
            settings: Of the run.
            data: Sources, fingerprints and reports.
            world: The processes.
            recipe_file: The recipe as it was given; None writes the settings.
        """
        settings_text = dump_settings(settings)
        recipe = settings_text if recipe_file is None else recipe_file.read_text(encoding="utf-8")
        texts = {
            "recipe.yaml": recipe,
            "resolved.yaml": settings_text,
            "command.txt": _command(),
            "env.json": json.dumps(environment(world), indent=1) + "\n",
            "data.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in texts.items():
            self._write(name, text)

    def keep(self, settings: RunSettings) -> None:
        """Write settings that were changed for going on into resolved.yaml, and the command below those before.

        Args:
            settings: Of the run from now on.
        """
        text = dump_settings(settings)
        if text == self.resolved.read_text(encoding="utf-8"):
            return
        command = self.path / "command.txt"
        before = command.read_text(encoding="utf-8") if command.is_file() else ""
        self._write(command.name, before + _command())
        self._write(self.resolved.name, text)

    def write_result(self, values: Mapping[str, Any]) -> None:
        """Write how the run ended, in place of what was there."""
        self._write(self.result.name, json.dumps(values, indent=1) + "\n")

    def write_report(self, found: Report, outcome: Outcome | None = None) -> None:
        """Write what rank 0 held, exchanged and spent its time on: report.txt to read, report.json for programs.

        Args:
            found: What was measured.
            outcome: What was planned, beside what came of it.
        """
        self._write("report.txt", f"{found}\n" + ("" if outcome is None else f"{outcome}\n"))
        values = {**found.to_json(), "plan": None if outcome is None else outcome.to_json()}
        self._write("report.json", json.dumps(values, indent=1) + "\n")

    def _write(self, name: str, text: str) -> None:
        """Write a file that is either whole or not there."""
        temporary = self.path / f".tmp-{name}"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path / name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; the lock goes with the process, however it ends.

        Raises:
            InputError: Another process works in the folder.
        """
        with (self.path / "run.lock").open("a+", encoding="utf-8") as file:
            try:
                _lock(file)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise InputError(f"{self.path}: process {holder} works on this run; wait for it or stop it first") from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def _command() -> str:
    """Return what was typed to start this process, as a line."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\n"


def _lock(file: IO[str]) -> None:
    """Take the lock, also from one who only looks whether it is held, which takes an instant."""
    for _ in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def environment(world: World) -> dict[str, Any]:
    """Return versions and facts of the machine that results may depend on; no names and no paths."""
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processes": world.world_size,
        "device": world.device.type,
        "accelerator": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": readable_size(psutil.virtual_memory().total),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return "nothing"
    if not path.is_dir():
        return "a file"
    names = sorted(entry.name for entry in path.iterdir())
    return ", ".join(names[:5]) or "an empty folder"
