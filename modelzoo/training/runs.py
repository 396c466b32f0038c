"""A run from its settings to its result: `train` starts one, `resume` continues one."""

import json
import logging
import os
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch

from modelzoo import hub
from modelzoo.config import RunSettings
from modelzoo.config.load import Overrides
from modelzoo.data import BatchStream
from modelzoo.errors import ConfigError
from modelzoo.models.model import Model
from modelzoo.plan import Plan
from modelzoo.quantities import counted
from modelzoo.runtime import (
    World,
    agree,
    connect,
    failing_together,
    layout,
    load_model,
    prepared,
    raise_together,
    seed_everything,
)
from modelzoo.runtime.tiers import budget_bytes, tiers_of
from modelzoo.runtime.tiers.timeline import Timeline
from modelzoo.training.adapting import base_fingerprint, describe_trained, load_for_run, skeleton_for_run, write_final
from modelzoo.training.attempt import attempt
from modelzoo.training.changing import settings_to_resume
from modelzoo.training.ending import record_ending, recorded_failure
from modelzoo.training.evaluation.evaluate import measure
from modelzoo.training.forecast import decide_recompute, forecast, planned_picture
from modelzoo.training.forms import store_chat
from modelzoo.training.identity import deciding_settings, identity_of
from modelzoo.training.job import Job
from modelzoo.training.loop import Loop
from modelzoo.training.optimizer import build_optimizer
from modelzoo.training.options import runtime_options
from modelzoo.training.preparation import Prepared, prepare
from modelzoo.training.progress.choice import choose_progress
from modelzoo.training.progress.progress import Progress, SilentProgress, metrics_text, time_text
from modelzoo.training.progress.trackers import track
from modelzoo.training.records import Records
from modelzoo.training.reserve import inputs_bytes, reserved_bytes
from modelzoo.training.restoring import restore
from modelzoo.training.result import RunResult
from modelzoo.training.run_directory import RunDirectory
from modelzoo.training.run_log import run_log
from modelzoo.training.signals import StopSignals

__all__ = ["resume", "train"]

log = logging.getLogger(__name__)

T = TypeVar("T")


def train(settings: RunSettings, *, progress: Progress | None = None, recipe_file: Path | None = None) -> RunResult:
    """Run a recipe from its beginning: read, train, evaluate, save. Under torchrun every process calls it.

    Args:
        settings: Of the run.
        progress: Hears of every step on rank 0; by default a live line on a terminal and log lines elsewhere.
        recipe_file: The recipe as it was written, to be kept with the run; the settings are kept in any case.

    Returns:
        Where everything is and how good it became. A run that was asked to stop (Ctrl-C, SIGTERM) has saved its state and returns
        too: look at `stopped`.

    Raises:
        InputError: Something that was given cannot be used; nothing was written.
        NonFiniteError: A loss or a gradient was NaN or infinite; the last checkpoint is of a good step.
        SaveError: Something could not be written; earlier checkpoints are intact.
        RankError: A process was lost, or disagrees with the others.
    """
    return _run(settings, None, progress, recipe_file)


def resume(
    run_folder: str | os.PathLike[str], *, progress: Progress | None = None, changes: Overrides = MappingProxyType({})
) -> RunResult:
    """Continue a run from its newest complete checkpoint, as if it had never stopped; any number of processes may do it.

    Args:
        run_folder: Of a run that `train` made.
        progress: As for `train`.
        changes: Settings that decide nothing about the result (layout, tiers, places, output); the run keeps them.

    Raises:
        ConfigError: A change decides about the result.
        CheckpointError: Settings or data are not those of the checkpoint; the message shows both.
        InputError: It is not the folder of a run, or another process works in it.
    """
    directory = RunDirectory.existing(Path(run_folder))
    return _run(settings_to_resume(directory, changes), directory, progress, None)


def _run(settings: RunSettings, directory: RunDirectory | None, progress: Progress | None, recipe_file: Path | None) -> RunResult:
    """Prepare on every process alone, then meet and run together."""
    is_new = directory is None
    with runtime_options(settings), ExitStack() as stack:
        data, error = attempt(lambda: prepare(settings))
        world = stack.enter_context(connect(settings.parallel.timeout_s))
        stack.enter_context(failing_together(world, "the run"))
        raise_together(world, error or (_wrong_ranks(settings, world) if is_new else None))
        assert data is not None
        agree(world, _facts(settings, data))
        directory = _open_directory(world, settings, directory, stack)
        if world.is_main:
            stack.enter_context(run_log(directory.log))
            stack.enter_context(recorded_failure(directory, is_new=is_new))
        shown = progress or choose_progress(settings.output.log_every_s)
        progress = track(shown, settings, directory.path) if world.is_main else SilentProgress()
        stack.callback(progress.close)
        if is_new:
            _, error = attempt(lambda: directory.describe(settings, data.data, world, recipe_file)) if world.is_main else (0, None)
            raise_together(world, error)
        elif (done := world.broadcast(_finished(directory) if world.is_main else None)) is not None:
            progress.note(f"run      {directory.path} is finished already: step {done.step} of {done.total_steps}")
            return done
        return _train_and_finish(settings, data, world, directory, progress, stack)


def _wrong_ranks(settings: RunSettings, world: World) -> ConfigError | None:
    """Return what is wrong if the settings ask for another number of processes than there are."""
    wanted = settings.parallel.ranks
    if wanted in (None, world.world_size):
        return None
    return ConfigError(
        f"parallel.ranks={wanted}: this run has {counted(world.world_size, 'process')}; start {wanted} with `modelzoo train`, "
        "torchrun or srun, or leave parallel.ranks out"
    )


def _train_and_finish(
    settings: RunSettings, data: Prepared, world: World, directory: RunDirectory, progress: Progress, stack: ExitStack
) -> RunResult:
    """Load the model, restore what was saved, train, and make the result."""
    world.enter("loading the model")
    asked = settings
    # a new head is the same in every run and on every rank
    seed_everything(settings.train.seed)
    skeleton = skeleton_for_run(settings, data.pretrained)
    evaluated = data.evaluation.dataset.lengths if data.evaluation is not None else ()
    settings = decide_recompute(settings, skeleton, data.train, world, evaluated=evaluated)
    reserved = waiting = 0
    if settings.memory.is_used:
        reserved = reserved_bytes(settings, skeleton, data.train, world, evaluated=evaluated)
        waiting = inputs_bytes(settings, skeleton, data.train, world)
    plan = forecast(settings, skeleton, data.train, world, evaluated=evaluated) if world.is_main else None
    lay_out = layout(world, settings.parallel, settings.memory, reserved_bytes=reserved, inputs_bytes=waiting)
    model = load_for_run(settings, data.pretrained, lay_out)
    tiers = tiers_of(model)
    if tiers is not None:
        stack.callback(tiers.close)
        progress.note(f"memory   {tiers.describe()}")
    _say_start(progress, settings, data, model, world, directory)
    job = _job(settings, data, model, directory, plan, base_fingerprint(settings, data.pretrained.folder, world))
    if tiers is not None and world.is_main:
        Timeline(
            model, tiers, job.optimizer, directory.timeline, planned=planned_picture(plan, budget_bytes(settings.memory, world))
        )
    # dropout draws differ between shares of the data; on one process nothing depends on how many numbers the new head took
    seed_everything(settings.train.seed + 1 + world.data_rank)
    state = restore(job, world, progress)
    if world.is_main:  # a resume that is refused has left the run as it was
        directory.result.unlink(missing_ok=True)
    raise_together(world, attempt(lambda: directory.keep(asked) if world.is_main else None)[1])
    records = Records(directory.metrics if world.is_main else None, state.step, is_evaluation_due=state.is_evaluation_due)
    try:
        with StopSignals() as signals:
            stopped = Loop(job, state, world, progress, records, signals).run()
    finally:
        records.close()
    result = RunResult(
        folder=directory.path,
        stopped=stopped,
        step=state.step,
        total_steps=job.total_steps,
        metric=settings.metric,
        best_metric=state.best_value,
        best_step=state.best_step,
        majority=data.evaluation.dataset.report.majority_share if data.evaluation else None,
        history=tuple(state.evaluations),
        seconds=state.seconds,
    )
    if stopped != "finished":
        if world.is_main:
            record_ending(job, world, directory, result)
        progress.note(
            f"{stopped} at step {state.step} of {job.total_steps}, which is saved; continue with: {result.resume_command}"
        )
        return result
    return _finish(job, data, world, directory, progress, result)


def _job(
    settings: RunSettings, data: Prepared, model: Model, directory: RunDirectory, plan: Plan | None, base: dict[str, str]
) -> Job:
    """Put together what the loop needs."""
    stream = BatchStream(
        data.train.lengths,
        batch_size=settings.train.batch_size,
        batch_tokens=settings.train.batch_tokens,
        seed=settings.train.seed,
    )
    total_steps = min(stream.steps_for(settings.train.epochs), settings.train.max_steps or 2**62)
    return Job(
        settings=settings,
        model=model,
        optimizer=build_optimizer(
            model,
            lr=settings.optimizer.lr,
            weight_decay=settings.optimizer.weight_decay,
            betas=settings.optimizer.betas,
            eps=settings.optimizer.eps,
            moments=settings.optimizer.moments,
        ),
        dataset=data.train,
        evaluation=data.evaluation,
        identity=identity_of(settings, data.fingerprint, base),
        config=deciding_settings(settings) | base,
        checkpoints=directory.checkpoints,
        total_steps=total_steps,
        plan=plan,
    )


def _finish(job: Job, data: Prepared, world: World, directory: RunDirectory, progress: Progress, result: RunResult) -> RunResult:
    """Take the best weights, save them as a Hugging Face folder, and evaluate them on the test data. Collective."""
    if job.settings.checkpoint.keep_best and result.best_step not in (None, result.step):
        best = directory.checkpoints / f"step-{result.best_step}"
        raise_together(world, attempt(lambda: load_model(best, job.model))[1])
    job.model.eval()
    world.enter("writing the final model")
    written = write_final(job.settings, job.model, directory.final)
    if written is not None:
        progress.note(written)
    if data.train.form == "chat":
        raise_together(world, attempt(lambda: store_chat(directory.final, job.settings) if world.is_main else None)[1])
    test = measure(job.model, data.test, world) if data.test is not None else None
    values = {**result.to_json(), "test": test}
    result = RunResult.from_json(values, directory.path, directory.final)
    if world.is_main:
        record_ending(job, world, directory, result, base=data.pretrained.folder)
        progress.note(f"report   {directory.report}")
    if test is not None:
        progress.note(f"test     {metrics_text(test)}")
    best_text = "" if result.best_metric is None else f"   best {result.metric} {result.best_metric:.4f} (step {result.best_step})"
    if result.majority is not None and result.best_metric is not None:
        best_text += f", always the commonest label{'' if result.metric == 'accuracy' else ': accuracy'} {result.majority:.4f}"
    progress.note(f"finished {counted(result.step, 'step')} in {time_text(result.seconds)}{best_text}")
    world.barrier()
    return result


def _open_directory(world: World, settings: RunSettings, directory: RunDirectory | None, stack: ExitStack) -> RunDirectory:
    """Make or take the run's folder on rank 0, lock it until the stack unwinds, and tell all. Collective."""

    def open_locked() -> RunDirectory:
        name = settings.output.name or settings.recipe
        opened = directory or RunDirectory.create(Path(settings.output.folder), name)
        stack.enter_context(opened.locked())
        return opened

    opened, error = attempt(open_locked) if world.is_main else (None, None)
    raise_together(world, error)
    return RunDirectory(Path(world.broadcast(str(opened.path) if opened else "")))


def _finished(directory: RunDirectory) -> RunResult | None:
    """Return the result of a run that needs no more work."""
    if not (directory.result.is_file() and directory.final.is_dir()):
        return None
    values = json.loads(directory.result.read_text(encoding="utf-8"))
    if values["stopped"] != "finished":
        return None
    return RunResult.from_json(values, directory.path, directory.final)


def _facts(settings: RunSettings, data: Prepared) -> dict[str, str]:
    """Return what must be the same on all ranks."""
    config = {"family": data.pretrained.model_class.family, **data.pretrained.config.values()}
    return {
        "settings": settings.model_dump_json(),
        "data fingerprint": data.fingerprint,
        "model": json.dumps(config, sort_keys=True, default=str),
        "revision": str(hub.revision_of(data.pretrained.folder)),
        "torch version": str(torch.__version__),
    }


def _say_start(
    progress: Progress, settings: RunSettings, data: Prepared, model: Model, world: World, directory: RunDirectory
) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    progress.note(
        f"run      {directory.path} · seed {settings.train.seed} · {settings.parallel.precision} · "
        f"{counted(world.world_size, 'process')} on {world.device.type}, {counted(torch.get_num_threads(), 'thread')} each"
    )
    if world.world_size > 1:
        chosen = prepared(model).config
        progress.note(
            f"layout   data_shard={chosen.data_shard} data_replicate={chosen.data_replicate} tensor={chosen.tensor} "
            f"zero={chosen.zero}"
        )
    progress.note(f"model    {data.pretrained.model_class.__name__} for {settings.model.task}, {count:,} parameters")
    for note in describe_trained(model) if settings.adapter.is_used else ():
        progress.note(note)
    for note in (str(model.load_report), *data.notes):
        progress.note("\n".join(f"         {line}" for line in note.splitlines()))
    for warning in data.warnings if world.is_main else ():
        log.warning("%s", warning)
