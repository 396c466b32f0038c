"""The training loop, read from `run` downwards: take a batch, take a step, evaluate and save when it is time.

Every rank runs the same loop on its share of each batch. What one rank alone can know (a signal, a bad sample) is told to all
before anything is done about it, so that no rank waits for another that has left.
"""

import time
from dataclasses import dataclass
from functools import partial

from modelzoo.data import BatchStream
from modelzoo.errors import DataError
from modelzoo.runtime import World, mark_agreed, prepared, raise_together
from modelzoo.training.evaluation.evaluate import measure
from modelzoo.training.evaluation.forward_all import EvaluationStopped
from modelzoo.training.evaluation.metrics import is_better
from modelzoo.training.job import Job
from modelzoo.training.largest_batch import compute_largest, find_largest
from modelzoo.training.less_memory import less_memory
from modelzoo.training.loop_state import NEXT_SAMPLES, LoopState
from modelzoo.training.memory_error import EVALUATION_ADVICE, STEP_ADVICE, memory_watched
from modelzoo.training.optimizer import set_lr
from modelzoo.training.periods import is_due, times_due
from modelzoo.training.progress.pace import Pace
from modelzoo.training.progress.progress import Progress, StepReport, memory_bytes
from modelzoo.training.records import Records
from modelzoo.training.schedule import lr_at
from modelzoo.training.signals import Stopped, StopSignals
from modelzoo.training.step import MicroBatch, StepResult, build_micro_batches, take_step

__all__ = ["Loop"]


@dataclass(frozen=True, slots=True)
class _Batch:
    """This rank's share of a global batch, and facts of the whole."""

    micro_batches: list[MicroBatch]
    num_samples: int
    num_targets: int
    num_tokens: int
    seconds: float
    """Time that it took to get."""


class Loop:
    """A run from one state to its end, or to where it is asked to stop.

    Args:
        job: What to train.
        state: Where to start; advanced as the run goes.
        world: The processes.
        progress: Hears of everything; a silent one on ranks other than 0.
        records: The metrics file.
        signals: Whether somebody asked to stop.
    """

    def __init__(
        self, job: Job, state: LoopState, world: World, progress: Progress, records: Records, signals: StopSignals
    ) -> None:
        self.job, self.state, self.world = job, state, world
        self._progress, self._records, self._signals = progress, records, signals
        train = job.settings.train
        self.stream = BatchStream(
            job.dataset.lengths,
            batch_size=train.batch_size,
            batch_tokens=train.batch_tokens,
            seed=train.seed,
            position=state.position,
        )
        self._pace = Pace(job.total_steps, job.evaluation.num_tokens if job.evaluation else 0)
        self._seconds_before = state.seconds
        self._saved_step = state.step if state.step else None
        self._kept_best = state.best_step
        self._is_first = True
        self._saver = job.saver(world)

    def run(self) -> Stopped:
        """Train to the last step and return "finished", or save and return why it stopped.

        Raises:
            NonFiniteError: A loss or gradient is not finite; the last checkpoint is that of a good step.
            SaveError: A checkpoint could not be written; the ones before are intact.
        """
        try:
            stopped = self._run()
            self._saver.settle()
            return stopped
        except Exception as error:
            if self.world.world_size == 1 or error is self.world.agreed_error:
                self._saver.settle()
            else:
                self._saver.abandon()
            raise

    def _run(self) -> Stopped:
        self.job.model.train()
        if self.state.is_evaluation_due:
            self._evaluate()
        while self.state.step < self.job.total_steps and not self.state.is_evaluation_due:
            batch, stopped = self._next_batch()
            if stopped != "finished":
                self._save()
                return stopped
            before = self.state.position
            self._take_step(batch)
            if self._is_first:
                self._compute_largest(before)
            improved = self._evaluate_if_due(before)
            self._save_if_due(before, improved)
        if self.state.is_evaluation_due:
            self._save()
            return self._agree_on_stop()
        return "finished"

    def _next_batch(self) -> tuple[_Batch, Stopped]:
        """Return the next batch, and whether any rank was asked to stop instead of training on it. Collective."""
        started = time.monotonic()
        self.world.enter(f"reading the batch of step {self.state.step + 1}")
        indices = next(self.stream)
        micro_batches: list[MicroBatch] = []
        error: Exception | None = None
        try:
            micro_batches = build_micro_batches(
                self.job.dataset,
                indices,
                epoch=self.stream.epoch,
                world=self.world,
                max_rows=self.job.settings.train.micro_batch_size,
            )
        except Exception as unexpected:  # told to all ranks in the next lines, which raise it
            error = unexpected
        own_targets = sum(batch.num_targets for batch in micro_batches)
        own_tokens = sum(batch.num_tokens for batch in micro_batches)
        targets, tokens, failed, stop, written, unwritten = self.world.sum(
            [
                *self.world.once([own_targets, own_tokens]),
                error is not None,
                self._signals.wanted != "finished",
                *self._saver.counts(),
            ]
        )
        if written == self.world.world_size or unwritten:
            self._saver.settle()
        if failed:
            raise_together(self.world, error)
        stopped: Stopped = self._agree_on_stop() if stop else "finished"
        if not targets and stopped == "finished":
            raise mark_agreed(
                self.world,
                DataError(f"step {self.state.step + 1}: none of the samples {indices[:20]} has a target; look at their labels"),
            )
        return _Batch(micro_batches, len(indices), int(targets), int(tokens), time.monotonic() - started), stopped

    def _agree_on_stop(self) -> Stopped:
        """Return why the run stops, when any rank was asked to. Collective."""
        return "preempted" if "preempted" in self.world.gather(self._signals.wanted) else "interrupted"

    def _take_step(self, batch: _Batch) -> None:
        """Train on a batch, and note and show what came of it. Collective."""
        started = time.monotonic()
        job, state = self.job, self.state
        prepared(job.model).clock.add("data", batch.seconds)
        schedule = job.settings.schedule
        lr = lr_at(
            state.step,
            job.total_steps,
            peak=job.settings.optimizer.lr,
            name=schedule.name,
            warmup=schedule.warmup,
            final_ratio=schedule.final_lr_ratio,
        )
        set_lr(job.optimizer, lr)
        with memory_watched(f"step {state.step + 1}", batch.micro_batches, STEP_ADVICE, partial(less_memory, job)):
            result = take_step(
                job.model,
                job.optimizer,
                batch.micro_batches,
                num_targets=batch.num_targets,
                clip_norm=job.settings.train.clip_norm,
                world=self.world,
                step=state.step + 1,
                loss_scale=state.loss_scale if job.needs_loss_scale else None,
            )
        state.step += 1
        state.position = self.stream.position
        state.tokens += batch.num_tokens
        self._pace.add_step(time.monotonic() - started + batch.seconds, batch.seconds, batch.num_tokens, batch.num_samples)
        self._report(result, lr)

    def _compute_largest(self, before: int) -> None:
        """See that the largest batch to come fits into memory, after the first step that was taken here. Collective."""
        self._is_first = False
        job, state = self.job, self.state
        if job.settings.memory.is_used:
            return
        steps = job.total_steps - state.step + 1
        data_ranks = self.world.data_size
        largest = find_largest(job.dataset.lengths, job.settings, position=before, steps=steps, data_ranks=data_ranks)
        if largest is not None:
            self._progress.note(compute_largest(job, largest, state.step - 1 + largest.step, self.world))

    def _report(self, result: StepResult, lr: float) -> None:
        state, pace, job = self.state, self._pace, self.job
        self._records.add(
            {
                "step": state.step,
                "epoch": round(self._epoch, 6),
                "loss": result.loss,
                "lr": lr,
                "grad_norm": result.grad_norm,
                "samples": state.position,
                "tokens": state.tokens,
                "seconds": round(self._seconds, 3),
                **(
                    {}
                    if result.is_taken
                    else {"skipped": f"gradients overflowed; the loss scale is now {state.loss_scale.scale:g}"}
                ),
            }
        )
        steps_left = job.total_steps - state.step
        every = job.settings.evaluation.every
        epochs_left = steps_left * self._epoch / state.step
        evaluations_left = times_due(every, steps=steps_left, epochs=epochs_left) if job.evaluation else 0.0
        self._progress.step(
            StepReport(
                step=state.step,
                total_steps=job.total_steps,
                epoch=self._epoch,
                loss=result.loss,
                lr=lr,
                grad_norm=result.grad_norm,
                tokens_per_s=pace.tokens_per_s,
                samples_per_s=pace.samples_per_s,
                wait_share=pace.wait_share,
                memory_bytes=memory_bytes(self.world.device),
                eta_s=pace.eta_s(state.step, evaluations_left),
                tokens=state.tokens,
            )
        )

    def _evaluate_if_due(self, before: int) -> bool:
        """Evaluate at the period and at the end, and return whether it is the best so far, the same on every rank. Collective."""
        if self.job.evaluation is None or not (self._is_due(self.job.settings.evaluation.every, before) or self._is_last):
            return False
        return self._evaluate()

    def _evaluate(self) -> bool:
        """Evaluate, and return whether it is the best so far; asked to stop meanwhile, leave it due. Collective."""
        samples, state = self.job.evaluation, self.state
        assert samples is not None
        started = time.monotonic()
        state.is_evaluation_due = True
        self.world.enter(f"the evaluation after step {state.step}")
        try:
            with memory_watched(f"the evaluation after step {state.step}", (), EVALUATION_ADVICE):
                values = measure(self.job.model, samples, self.world, wants_stop=lambda: self._signals.wanted != "finished")
        except EvaluationStopped:
            return False
        state.is_evaluation_due = False
        seconds = time.monotonic() - started
        self._pace.add_evaluation(seconds)
        # the values come from sums over all ranks; rank 0's are taken so that no last bit decides differently elsewhere
        value = self.world.broadcast(values[self.job.settings.metric])
        improved = is_better(self.job.settings.metric, value, state.best_value)
        if improved:
            state.best_step, state.best_value = state.step, value
        epoch = round(self._epoch, 6)
        state.evaluations.append({"step": state.step, "epoch": epoch, **values})
        self._records.add({"step": state.step, "epoch": epoch, "evaluation": values, "seconds": round(self._seconds, 3)})
        self._records.sync()
        self._progress.evaluated(state.step, values, is_best=improved, seconds=seconds)
        return improved

    def _save_if_due(self, before: int, improved: bool) -> None:
        checkpoint = self.job.settings.checkpoint
        if self._is_due(checkpoint.every, before) or self._is_last or (improved and checkpoint.keep_best):
            self._save()

    def _save(self) -> None:
        """Save the state, unless it was just loaded or saved, and let old checkpoints go. Collective."""
        job, state = self.job, self.state
        if self._saved_step == state.step:
            return
        self._records.sync()
        state.seconds, state.next_samples = self._seconds, self.stream.peek(state.position, NEXT_SAMPLES)
        best = {state.best_step, self._kept_best} - {None} if job.settings.checkpoint.keep_best else set()
        self._saver.save(
            state.step,
            model=job.model,
            optimizer=job.optimizer,
            state={"loop": state.to_json(), "config": job.config},
            # also the best one of the checkpoint before: should this one be damaged, the run goes on from that
            keep=[step for step in best if step is not None],
        )
        self._saved_step, self._kept_best = state.step, state.best_step

    def _is_due(self, period: int | str | None, before: int) -> bool:
        return is_due(
            period,
            step=self.state.step,
            before=before,
            after=self.state.position,
            samples_per_epoch=self.stream.samples_per_epoch,
        )

    @property
    def _is_last(self) -> bool:
        return self.state.step == self.job.total_steps

    @property
    def _epoch(self) -> float:
        return self.state.position / self.stream.samples_per_epoch

    @property
    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._pace.started
