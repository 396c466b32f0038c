"""Services that keep the numbers of runs: optional, never asking, never able to stop a run."""

from modelzoo.training.progress.trackers.tracked import TrackedProgress, Tracker, track

__all__ = ["TrackedProgress", "Tracker", "track"]
