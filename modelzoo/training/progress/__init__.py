"""What is shown and told of a run while it goes on: a live line, log lines, a notebook's table, and trackers."""

from modelzoo.training.progress.progress import LineProgress, Progress, SilentProgress, StepReport

__all__ = ["LineProgress", "Progress", "SilentProgress", "StepReport"]
