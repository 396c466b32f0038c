"""What a task is to the data part: the forms of its rows, how they become token ids, and what its targets are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from modelzoo.data.columns import Asker, Form
from modelzoo.data.encoding import Encoding, Truncation
from modelzoo.data.tasks.cutting import Cut
from modelzoo.data.tasks.draws import Draws, Item
from modelzoo.data.tokenizer import Tokenizer

__all__ = ["Draws", "EncodedRows", "Item", "PromptRows", "Recipe", "Rows", "TaskSpec"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How rows are encoded."""

    task: str
    """One of `TASKS`."""
    tokenizer: Tokenizer
    """The tokenizer of the model."""
    max_length: int
    """Tokens of the longest item, special tokens included."""
    max_target_length: int | None = None
    """Tokens of the longest target of an encoder-decoder, its end included; None for max_length."""
    template: str | None = None
    """Named chat template; None for the tokenizer's own."""
    columns: Mapping[str, str] | None = None
    """Column by role; what it leaves out is looked for."""
    label_names: Sequence[str] | None = None
    """Names of the labels by id; None takes them from the rows."""
    truncation: Truncation = "longest_first"
    """Which text loses tokens."""
    window_stride: int | None = None
    """Tokens that neighbouring windows share; None: 128, and at most a quarter of max_length."""
    source: str = "data"
    """What the rows are called in errors."""
    labelled: bool = True
    """False: there are no labels (prediction)."""
    seed: int = 0
    """Of what is drawn anew in each epoch."""
    asker: Asker = "recipe"
    """Who is told what to change when rows do not fit."""


@dataclass(kw_only=True, slots=True)
class EncodedRows:
    """Items: one a row, or one a window of a row."""

    encodings: list[Encoding]
    """Ids of each item; `row` tells its row, counted from 0."""
    labels: list[int] | list[list[int]] | None = None
    """One label an item, one a token, or those of a target that a decoder writes; None where there are none."""
    spans: list[tuple[int, int]] | None = None
    """First and last token of the answer, for question answering."""
    draws: Draws | None = None
    """Makes the items anew in each epoch; None where they are what was encoded."""
    label_names: tuple[str, ...] = ()
    """Names of the labels by id."""
    choice_counts: dict[str, int] = field(default_factory=dict)
    """How often each choice is right, where all rows have the same ones."""
    lost_targets: int = 0
    """Targets that truncation or the tokenizer removed."""
    empty_rows: list[int] = field(default_factory=list)
    """Rows without any text, counted from 0."""
    parts: list[list[int]] | None = None
    """Tokens of each choice of an item, whose ids stand one after another; None where an item is one sequence."""
    form: str = ""
    """Which form a language model's rows have (`samples.FORMS`); empty for other tasks."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows as what a model is asked to write."""

    ids: list[list[int]]
    """The prompt, or the encoder's input, of each row."""
    answers: Sequence[tuple[str, ...]]
    """The right texts of each row; empty where nobody knows them."""
    end_ids: tuple[int, ...]
    """Ids that end what is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """A task: everything about it that the data, the training and the evaluation ask for stands here."""

    forms: tuple[Form, ...]
    """The forms that rows may have; the first one whose columns are all there is taken."""
    encode: Callable[[Rows, Mapping[str, str], Recipe], EncodedRows]
    """Turns rows into items, given the column of each role."""
    targets: Literal["item", "token", "span"]
    """What has a target: an item, each of its tokens (or of its answer's), or the span of an answer."""
    prompts: Callable[[Rows, Mapping[str, str], Recipe], PromptRows] | None = None
    """Turns rows into prompts, for a task whose model writes text; None for others."""
    cut: Callable[[Recipe], Cut] | None = None
    """Says how plain texts become samples, for a task that learns from such; None for others."""
    candidates: Callable[[Rows, Mapping[str, str], Recipe], EncodedRows] | None = None
    """Turns rows with choices into an item a choice, row after row, for a task whose model writes text; None for others."""
    label_role: str | None = None
    """Role of the column whose labels have names; None for a task without."""
    predicts_next: bool = False
    """Whether the scores at a token are of the one that follows it."""
    scores_vocabulary: bool = False
    """Whether the model scores the whole vocabulary for each token."""

    @property
    def target_roles(self) -> frozenset[str]:
        """Roles of what is learned, in any form."""
        return frozenset().union(*(form.targets for form in self.forms))
