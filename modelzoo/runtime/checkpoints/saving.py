"""A save on its way: begun by all ranks, written by each one alone, published by all.

Each rank writes its own files, hashes them while it writes, and makes them durable. Only when all have told rank 0 that they are
done does it write the manifest and rename the folder. Writing needs no other rank, so a thread can do it.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from modelzoo.errors import ModelZooError, SaveError
from modelzoo.runtime.agreement import raise_together
from modelzoo.runtime.checkpoints.division import Kinds, SavePlan, file_name
from modelzoo.runtime.checkpoints.durable import WrittenFile
from modelzoo.runtime.checkpoints.manifest import MANIFEST, Manifest, manifest_text
from modelzoo.runtime.checkpoints.publish import check_space, make_temporary, publish, readable_size, write_text
from modelzoo.runtime.checkpoints.reading import STATE
from modelzoo.runtime.checkpoints.tensors import write_tensors
from modelzoo.runtime.process import World
from modelzoo.sharded import held

__all__ = ["Save", "begin_save"]

Result = tuple[dict[str, WrittenFile], Exception | None]


@dataclass(slots=True)
class Save:
    """A save that was begun.

    Attributes:
        target: The folder that will appear.
        temporary: Where the files are written until then.
        manifest: Of the checkpoint, without the files.
        state: What is saved beside the tensors.
        own: This rank's parts by kind and name; kept until they are written. Those that are away (on disk) are read one at a time.
    """

    target: Path
    temporary: Path
    manifest: Manifest
    state: Mapping[str, Any]
    own: Kinds
    needed_bytes: int
    files: dict[str, WrittenFile] = field(default_factory=dict)
    error: Exception | None = None

    def write(self, rank: int) -> None:
        """Write this rank's files durably and keep their sizes and hashes, or the error. Not collective; any thread may do it."""
        try:
            for kind, tensors in self.own.items():
                if tensors:
                    name = file_name(kind, rank, self.manifest.world_size)
                    self.files[name] = write_tensors(self.temporary / name, tensors, {"generation": self.manifest.generation})
        except Exception as failed:  # rule 30: told to all ranks by `publish`, which raises it
            self.error = self._explained(failed)
        finally:
            self.own = {}

    def publish(self, world: World) -> Path:
        """Hear from all ranks that they have written, and let the folder appear. Collective, after `write`.

        Raises:
            SaveError: A rank could not write. The temporary folder is gone; what was published before is intact.
        """
        failed = [rank for rank, has_failed in enumerate(world.gather(self.error is not None)) if has_failed]
        if failed:
            if world.is_main:
                self.withdraw()
            raise_together(world, self.error)
        told = world.gather(self.files)
        error = None
        if world.is_main:
            error = self._attempt(lambda: self._finish({name: facts for some in told for name, facts in some.items()}))
        raise_together(world, error)
        return self.target

    def withdraw(self) -> None:
        """Remove what was written. Not collective: rank 0 does it."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _finish(self, files: Mapping[str, WrittenFile]) -> None:
        for name, facts in files.items():
            path = self.temporary / name
            if not path.is_file() or path.stat().st_size != facts.size_bytes:
                raise SaveError(
                    f"{path}: another rank wrote it, but rank 0 does not see its {facts.size_bytes} bytes; checkpoints need a "
                    "folder that all ranks share: set output.folder to one"
                )
        generation, step = self.manifest.generation, self.manifest.step
        text = json.dumps({"generation": generation, "step": step, "state": dict(self.state)}, indent=1)
        every = {**files, STATE: write_text(self.temporary / STATE, text + "\n")}
        write_text(self.temporary / MANIFEST, manifest_text(replace(self.manifest, files=every)))
        publish(self.temporary, self.target)

    def _attempt(self, action: Callable[[], object]) -> Exception | None:
        """Return the error of an action on rank 0, after which nothing is left of the save."""
        try:
            action()
        except Exception as failed:
            self.withdraw()
            return self._explained(failed)
        return None

    def _explained(self, error: Exception) -> Exception:
        return explained(error, self.target, self.needed_bytes)


def begin_save(world: World, target: Path, manifest: Manifest, plan: SavePlan, kinds: Kinds, state: Mapping[str, Any]) -> Save:
    """Check that there is room and make the temporary folder on rank 0, and return the save that all ranks go on with. Collective.

    Args:
        world: The processes.
        target: The folder that shall appear.
        manifest: Without files and tensors; rank 0's is taken.
        plan: Who writes what.
        kinds: This rank's tensors.
        state: JSON values; rank 0's are taken.

    Raises:
        SaveError: The target exists, there is no room, or no right to write. Nothing was changed.
    """
    temporary, error = None, None
    if world.is_main:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            check_space(target.parent, plan.total_bytes, f"save of step {manifest.step}")
            temporary = make_temporary(target)
        except Exception as failed:
            error = explained(failed, target, plan.total_bytes)
    raise_together(world, error)
    told, generation, created = world.broadcast((str(temporary), manifest.generation, manifest.created))
    manifest = replace(manifest, generation=generation, created=created, tensors=plan.tensors)
    own: dict[str, dict[str, Tensor]] = {
        kind: {name: held(kinds[kind][name]) for name in names} for kind, names in plan.own.items()
    }
    return Save(target, Path(told), manifest, state, own, plan.total_bytes)


def explained(error: Exception, target: Path, needed_bytes: int) -> Exception:
    """Return an error of the system as one that says which save failed, where, and what it needed."""
    if isinstance(error, ModelZooError) or not isinstance(error, OSError):
        return error
    refused = SaveError(
        f"save of {target.name.replace('-', ' ')} at {target}: {error.strerror or error}; it needs {readable_size(needed_bytes)}; "
        "what was saved before is intact"
    )
    refused.__cause__ = error
    return refused
