"""Going on from the newest complete checkpoint of a run, on any layout, or from the beginning."""

from pathlib import Path

from modelzoo.data import BatchStream
from modelzoo.errors import CheckpointError
from modelzoo.quantities import counted
from modelzoo.runtime import World, find_latest, load_checkpoint, raise_together, read_manifest, read_state, set_aside, sweep
from modelzoo.training.attempt import attempt
from modelzoo.training.identity import check_identity
from modelzoo.training.job import Job
from modelzoo.training.loop_state import LoopState
from modelzoo.training.progress.progress import Progress

__all__ = ["restore"]


def restore(job: Job, world: World, progress: Progress) -> LoopState:
    """Load the newest complete checkpoint, if there is one, and return where it stands. Collective.

    Args:
        job: Its model and optimizer are filled.
        world: The processes.
        progress: Hears of what was skipped and where the run goes on.

    Raises:
        CheckpointError: The newest checkpoint belongs to other settings or data, or every one is damaged.
    """
    raise_together(world, attempt(lambda: sweep(job.checkpoints) if world.is_main else [])[1])
    found = find_latest(job.checkpoints, world)
    if found is None:
        return LoopState()
    for reason in found.skipped:
        progress.note(f"skipped  {reason}")
    raise_together(world, attempt(lambda: set_aside(job.checkpoints, found.manifest.step) if world.is_main else [])[1])

    def check() -> None:
        saved = read_state(found.path, found.manifest)
        check_identity(found, saved.get("config", {}), job.config, job.identity)

    raise_together(world, attempt(check)[1])
    world.enter(f"loading the checkpoint of step {found.manifest.step}")
    values = load_checkpoint(found.path, model=job.model, optimizer=job.optimizer, world=world, verify=False)
    state = LoopState.from_json(values["loop"])
    following, error = attempt(lambda: _following(job, state, found.path))
    raise_together(world, error)
    if state.best_step is not None and job.settings.checkpoint.keep_best:
        _check_best(job, state, world, progress)
    progress.note(
        f"resume   step {state.step} of {job.total_steps} ({counted(state.position, 'sample')}, {counted(state.tokens, 'token')}), "
        f"saved on {counted(found.manifest.world_size, 'process')}, now {world.world_size}"
        + (f"; next samples {following}, as before" if following else "")
    )
    return state


def _following(job: Job, state: LoopState, path: Path) -> str:
    """Return the samples that come next, which have to be those that the checkpoint names; nothing where it names none.

    Raises:
        CheckpointError: They are others.
    """
    train = job.settings.train
    stream = BatchStream(job.dataset.lengths, batch_size=train.batch_size, batch_tokens=train.batch_tokens, seed=train.seed)
    now = stream.peek(state.position, len(state.next_samples)) if state.next_samples else []
    if now != state.next_samples:
        raise CheckpointError(
            f"{path}: expected the samples {state.next_samples} next, the order is now {now}; it was saved by another version, "
            "which drew the order of the rows in another way: go on with that one, or start a new run"
        )
    return ", ".join(map(str, now))


def _check_best(job: Job, state: LoopState, world: World, progress: Progress) -> None:
    """Forget the best evaluation if its weights are not there any more, now and not at the end of the run. Collective."""
    best = job.checkpoints / f"step-{state.best_step}"
    problem = world.broadcast(attempt(lambda: read_manifest(best))[1] if world.is_main else None)
    if problem is not None:
        progress.note(f"best     the weights of step {state.best_step} are lost, the next evaluation is the best one: {problem}")
        state.best_step, state.best_value = None, None
