"""What a model makes of rows, and how good it is: every row once, whatever the number of processes."""

from modelzoo.training.evaluation.evaluate import EvaluationSet, evaluate, measure
from modelzoo.training.evaluation.prediction import predict

__all__ = ["EvaluationSet", "evaluate", "measure", "predict"]
