"""The plan of a training run with what else would fit: what `modelzoo plan` prints, as an object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modelzoo.adapters import add_adapter
from modelzoo.config import RunSettings
from modelzoo.converters import Task
from modelzoo.plan.alternatives import Alternative, find_alternatives
from modelzoo.plan.machine import Machine, find_machine
from modelzoo.plan.parts import read_parts
from modelzoo.plan.plan import Plan, plan_run
from modelzoo.plan.skeleton import skeleton
from modelzoo.plan.text import explain_line, plan_text

__all__ = ["TrainingPlan", "plan_training"]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a run takes, and which other settings would fit; as text it is what `modelzoo plan` prints."""

    plan: Plan
    """Of one rank, line by line."""
    alternatives: tuple[Alternative, ...]
    """Other settings, each planned too, best first."""
    recipe: str
    """As the text names it."""
    rows: str
    """What the lengths of the rows are taken to be, and why."""

    @property
    def fits(self) -> bool:
        """Whether all tiers have the room."""
        return self.plan.fits

    @property
    def peak_bytes(self) -> int:
        """Of the tier that a rank computes in."""
        return self.plan.peak_bytes

    @property
    def step_seconds(self) -> float:
        """How long one optimizer step takes."""
        return self.plan.time.step

    def __str__(self) -> str:
        """Return the tables of `modelzoo plan`."""
        return plan_text(self.plan, self.alternatives, recipe=self.recipe, rows=self.rows)

    def explain(self, line: str) -> str:
        """Return the formula and the numbers of one line.

        Args:
            line: Of memory (activations), of an exchange (gather) or of the time (compute).

        Raises:
            ConfigError: There is no such line; the message lists them.
        """
        return explain_line(self.plan, line)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, as `modelzoo plan --json` writes them."""
        others = [
            {"overrides": list(each.overrides), "peak_bytes": each.plan.peak_bytes, "step_seconds": each.plan.time.step}
            for each in self.alternatives
        ]
        return {**self.plan.to_json(), "rows": self.rows, "alternatives": others}


def plan_training(
    settings: RunSettings,
    *,
    ranks: int | None = None,
    machine: Machine | str = "this",
    task: Task | None = None,
    lengths: Sequence[int] | None = None,
    rows: str = "not read",
) -> TrainingPlan:
    """Plan a run before anything is allocated: no weight and no row is read, the model's config.json is enough.

    Args:
        settings: Of the run.
        ranks: Processes; None for parallel.ranks, or one.
        machine: What it is to run on: "this", a known one (`modelzoo.plan.KNOWN`), a YAML file of figures, or what `find_machine`
            and `probe` return.
        task: Another head than model.task.
        lengths: Tokens of each training row; None takes every row as long as data.max_length allows.
        rows: Where the lengths are from, or why there are none.

    Raises:
        ConfigError: The layout does not fit the ranks, or the machine is not known.
        CheckpointError: The model has no config.
    """
    labels = settings.data.label_names
    is_classifier = settings.model.task in ("classification", "token_classification")
    built = skeleton(
        settings.model.name,
        task=task or settings.model.task,
        num_labels=len(labels) if labels and is_classifier and task is None else None,
        dropout=settings.model.dropout,
    )
    if settings.adapter.is_used:
        add_adapter(built, settings.adapter)
    model = read_parts(built)
    where = find_machine(machine) if isinstance(machine, str) else machine
    found = plan_run(settings, model, where, ranks=ranks or settings.parallel.ranks or 1, lengths=lengths)
    others = find_alternatives(settings, model, where, found, lengths=lengths)
    if lengths is None:
        longest = min(settings.data.max_length, model.max_length)
        rows = f"every one taken as {longest} tokens, the most that data.max_length and the model allow ({rows})"
    return TrainingPlan(found, tuple(others), settings.recipe, rows)
