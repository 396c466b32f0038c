"""Training: the loop, its parts, and runs from settings to a result."""

from modelzoo.training.evaluation.evaluate import EvaluationSet, evaluate, measure
from modelzoo.training.evaluation.prediction import predict
from modelzoo.training.job import Job
from modelzoo.training.loop import Loop
from modelzoo.training.loop_state import LoopState
from modelzoo.training.optimizer import build_optimizer
from modelzoo.training.progress.progress import LineProgress, Progress, SilentProgress, StepReport
from modelzoo.training.result import RunResult
from modelzoo.training.runs import resume, train
from modelzoo.training.schedule import lr_at
from modelzoo.training.step import MicroBatch, StepResult, build_micro_batches, take_step

__all__ = [
    "EvaluationSet",
    "Job",
    "LineProgress",
    "Loop",
    "LoopState",
    "MicroBatch",
    "Progress",
    "RunResult",
    "SilentProgress",
    "StepReport",
    "StepResult",
    "build_micro_batches",
    "build_optimizer",
    "evaluate",
    "lr_at",
    "measure",
    "predict",
    "resume",
    "take_step",
    "train",
]
