"""What a data set is held against, and what became of its rows."""

from dataclasses import dataclass, field

from modelzoo.quantities import counted

__all__ = ["DataLimits", "DataReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataLimits:
    """What the model can take, checked for all rows before the run, and bounds on what may be lost. None checks nothing."""

    vocab_size: int | None = None
    """Rows of the model's embedding."""
    max_length: int | None = None
    """Tokens that the model's positions allow."""
    num_labels: int | None = None
    """Labels of the model's head."""
    type_vocab_size: int | None = None
    """Token types of the model."""
    max_rows: int | None = None
    """Only the first rows are used."""
    window_stride: int | None = None
    """Tokens that neighbouring windows share (question answering); None: 128, and at most a quarter of max_length."""
    max_lost_share: float = 0.01
    """Share of rows that may be dropped because truncation left them no target, from 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataReport:
    """What became of the rows. Lengths are in tokens, special tokens included."""

    rows: int
    """Rows that were given."""
    items: int
    """Samples of the data set: rows that are left, or their windows."""
    dropped_rows: int = 0
    """Rows without a target (empty texts of a language model, or all targets cut off)."""
    truncated_rows: int = 0
    """Rows that lost tokens."""
    cut_tokens: int = 0
    """Tokens that they lost."""
    lost_targets: int = 0
    """Word labels that truncation or the tokenizer removed."""
    tokens: int
    """Tokens of all items."""
    longest: int
    """Tokens of the longest item."""
    num_targets: int
    """Supervised targets; for masked_lm those of the first epoch, and of a token store the number to be expected."""
    label_counts: dict[str, int] = field(default_factory=dict)
    """Targets by label name."""

    @property
    def mean_length(self) -> float:
        """Mean length of the items in tokens."""
        return self.tokens / self.items

    @property
    def majority_share(self) -> float | None:
        """Share of the most frequent label: the accuracy of always answering it; None without labels."""
        total = sum(self.label_counts.values())
        return max(self.label_counts.values()) / total if total else None

    def describe(self) -> str:
        """Return the report in one line."""
        parts = [counted(self.rows, "row")]
        if self.items != self.rows:
            parts.append(counted(self.items, "item"))
        if self.dropped_rows:
            parts.append(f"{self.dropped_rows:,} dropped (no target)")
        cut = f"{self.truncated_rows:,} truncated"
        parts.append(f"{cut} (-{counted(self.cut_tokens, 'token')})" if self.truncated_rows else cut)
        if self.lost_targets:
            parts.append(f"{counted(self.lost_targets, 'word label')} lost")
        parts.append(f"length mean {self.mean_length:.0f}, longest {self.longest}")
        parts.append(counted(self.num_targets, "target"))
        if self.label_counts:
            counts = sorted(self.label_counts.items(), key=lambda item: -item[1])
            shown = ", ".join(f"{name} {count:,}" for name, count in counts[:4])
            parts.append(f"labels {shown}{', ...' if len(counts) > 4 else ''} (majority {self.majority_share:.1%})")
        return " · ".join(parts)
