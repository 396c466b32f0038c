"""A tokenized data set in memory: compact arrays, a report of what happened to the rows, and a fingerprint of the content."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modelzoo.data.encoding import Truncation
from modelzoo.data.flat_lists import context_offsets, flat, split, starts
from modelzoo.data.limits import DataLimits, DataReport
from modelzoo.data.masking import IGNORED
from modelzoo.data.samples import Samples
from modelzoo.data.tasks import EncodedRows, Item, Recipe, encode_rows, task_spec
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["TokenizedDataset", "build_dataset"]


class TokenizedDataset(Samples):
    """Samples as token ids and targets; built by `build_dataset`.

    Args:
        encoded: The encoded rows.
        recipe: How they were encoded.
        limits: The limits to check.
        num_rows: Rows that were given.
    """

    def __init__(self, encoded: EncodedRows, recipe: Recipe, limits: DataLimits, num_rows: int) -> None:
        spec = task_spec(recipe.task)
        self._draws = encoded.draws
        kept = _kept_items(encoded, recipe, limits, num_rows)
        encodings = [encoded.encodings[item] for item in kept]
        self._starts = starts([encoding.input_ids for encoding in encodings])
        self._ids = flat([encoding.input_ids for encoding in encodings])
        has_types = all(encoding.token_type_ids is not None for encoding in encodings)
        self._types = flat([encoding.token_type_ids or [] for encoding in encodings]) if has_types else None
        self._parts = None if encoded.parts is None else [encoded.parts[item] for item in kept]
        self._labels: np.ndarray | None = None
        self._has_token_labels = spec.targets == "token"
        self._label_starts = self._starts
        if encoded.labels is not None:
            labels: list[Any] = [encoded.labels[item] for item in kept]
            self._labels = flat(labels) if self._has_token_labels else np.asarray(labels, dtype="<i4")
            self._label_starts = starts(labels) if self._has_token_labels else self._starts
        target_lengths = self._target_lengths(encoded.form, has_decoder=not spec.predicts_next)
        super().__init__(
            task=recipe.task,
            source=recipe.source,
            rows=[encoding.row for encoding in encodings],
            lengths=self._lengths(target_lengths),
            target_lengths=target_lengths,
            label_names=encoded.label_names,
            form=encoded.form,
            pad_id=recipe.tokenizer.pad_id,
            is_labelled=recipe.labelled,
        )
        spans = encoded.spans
        self._spans = None if spans is None else np.asarray([spans[item] for item in kept], dtype="<i4")
        self._contexts = context_offsets(encodings) if spec.targets == "span" else None
        self._check(limits)
        self.report = self._report(encoded, num_rows)
        self.fingerprint = self._fingerprint()

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], recipe: Recipe, limits: DataLimits) -> "TokenizedDataset":
        """Return rows as a data set.

        Args:
            rows: At least one.
            recipe: How they are encoded.
            limits: The limits to check.

        Raises:
            DataError: As `build_dataset`.
        """
        rows = rows[: limits.max_rows]
        return cls(encode_rows(rows, recipe), recipe, limits, len(rows))

    def item(self, index: int, *, epoch: int = 0) -> Item:
        """Return one sample as the model's inputs, lists of ints and a label.

        Args:
            index: Number of the item, 0 <= index < len(dataset).
            epoch: Number of the pass over the data; masks of masked_lm differ from pass to pass.

        Returns:
            input_ids; token_type_ids if the tokenizer makes them (in multiple_choice, a list a choice); labels (an int, or a list
            for a label a token), with decoder_attention_mask where a decoder writes them; or start_positions and end_positions.
        """
        span = slice(int(self._starts[index]), int(self._starts[index + 1]))
        ids: list[int] = self._ids[span].tolist()
        item: Item = {"input_ids": ids}
        if self._types is not None:
            item["token_type_ids"] = self._types[span].tolist()
        if self._parts is not None:
            item = {name: split(values, self._parts[index]) for name, values in item.items()}
        if self._draws is not None:
            item |= self._draws.draw(ids, epoch=epoch, row=index)
        elif self._labels is not None:
            own = slice(int(self._label_starts[index]), int(self._label_starts[index + 1]))
            item["labels"] = self._labels[own].tolist() if self._has_token_labels else int(self._labels[index])
            if self.target_lengths:
                item["decoder_attention_mask"] = [1] * len(item["labels"])
        elif self._spans is not None:
            item["start_positions"], item["end_positions"] = map(int, self._spans[index])
        return item

    def num_targets(self, index: int, *, epoch: int = 0) -> int:
        """Return how many supervised targets an item has; a question's start and end count as one."""
        labels = self.item(index, epoch=epoch).get("labels") if self._has_token_labels else None
        if isinstance(labels, list):
            return sum(label != IGNORED for label in labels)
        return int(self._labels is not None or self._spans is not None)

    def context_offsets(self, index: int) -> list[tuple[int, int] | None]:
        """Return the characters [start, end) in the context of each token of a window; see `Samples.context_offsets`."""
        if self._contexts is None:
            return super().context_offsets(index)
        span = slice(int(self._starts[index]), int(self._starts[index + 1]))
        return [None if start < 0 else (int(start), int(end)) for start, end in self._contexts[span]]

    def _check(self, limits: DataLimits) -> None:
        """Hold every item against the model's limits."""
        read = [length - target for length, target in zip(self.lengths, self.target_lengths or [0] * len(self), strict=True)]
        read = read if self._parts is None else [max(parts) for parts in self._parts]
        longest = int(np.argmax(read))
        if limits.max_length is not None and read[longest] > limits.max_length:
            found = f"{self._row(longest)} has {read[longest]} tokens, limit {limits.max_length}"
            raise DataError(f"{self.source}: {found} (the model's positions); set data.max_length={limits.max_length}")
        self._check_below(self._ids, limits.vocab_size, "token id", "rows of the model's embedding")
        if self._types is not None:
            self._check_below(self._types, limits.type_vocab_size, "token_type_ids", "token types (type_vocab_size)")
        if self._labels is not None:
            is_token = task_spec(self.task).scores_vocabulary
            limit = limits.vocab_size if is_token else limits.num_labels
            self._check_below(self._labels, limit, "label", "labels of the model (num_labels)" if not is_token else "tokens")

    def _check_below(self, values: np.ndarray, limit: int | None, what: str, of_what: str) -> None:
        if limit is None or not len(values) or int(values.max()) < limit:
            return
        place = int(np.argmax(values >= limit))
        per_token = values is not self._labels or self._has_token_labels
        starts = self._label_starts if values is self._labels else self._starts
        item = int(np.searchsorted(starts, place, side="right")) - 1 if per_token else place
        where = f", position {place - int(starts[item])}" if per_token else ""
        raise DataError(f"{self.source}: {self._row(item)}{where}: {what} {int(values[place])}, limit {limit} {of_what}")

    def _target_lengths(self, form: str, *, has_decoder: bool) -> list[int]:
        if self._draws is not None:
            lengths = [self._draws.lengths(int(count))[1] for count in np.diff(self._starts)]
            return lengths if any(lengths) else []
        is_written = form == "pair" or (form == "choice" and self._has_token_labels and has_decoder)
        return np.diff(self._label_starts).tolist() if is_written else []

    def _lengths(self, target_lengths: Sequence[int]) -> list[int]:
        counts: list[int] = np.diff(self._starts).tolist()
        if self._draws is not None:
            return [sum(self._draws.lengths(count)) for count in counts]
        return [count + target for count, target in zip(counts, target_lengths or [0] * len(counts), strict=True)]

    def _row(self, item: int) -> str:
        return f"row {self.rows[item] + 1}"

    def _report(self, encoded: EncodedRows, num_rows: int) -> DataReport:
        cut = {encoding.row: encoding.truncated for encoding in encoded.encodings if encoding.truncated}
        counts = encoded.choice_counts
        if self._labels is not None and self.label_names:
            ids, numbers = np.unique(self._labels[self._labels != IGNORED], return_counts=True)
            counts = {self.label_names[token_id]: int(number) for token_id, number in zip(ids, numbers, strict=True)}
        if self._labels is not None and self._has_token_labels:
            targets = int((self._labels != IGNORED).sum())
        else:
            targets = sum(counts.values()) if counts else sum(self.num_targets(item) for item in range(len(self)))
        return DataReport(
            rows=num_rows,
            items=len(self),
            dropped_rows=num_rows - len(set(self.rows)),
            truncated_rows=len(cut),
            cut_tokens=sum(cut.values()),
            lost_targets=encoded.lost_targets,
            tokens=sum(self.lengths),
            longest=max(self.lengths),
            num_targets=targets,
            label_counts=counts,
        )

    def _fingerprint(self) -> str:
        """Return the sha256 of everything that training sees: ids, types, targets and label names."""
        digest = hashlib.sha256()
        digest.update(json.dumps(["modelzoo.data 1", self.task, self.label_names]).encode())
        own_starts = [] if self._label_starts is self._starts else [self._label_starts.astype("<i8")]
        parts = [] if self._parts is None else [flat(self._parts)]
        for array in (self._starts.astype("<i8"), self._ids, self._types, self._labels, self._spans, *own_starts, *parts):
            digest.update(b"-" if array is None else f"{array.dtype.str}{array.shape}".encode())
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def build_dataset(
    rows: Sequence[Mapping[str, Any]],
    *,
    task: str,
    tokenizer: Tokenizer,
    columns: Mapping[str, str] | None = None,
    label_names: Sequence[str] | None = None,
    max_length: int | None = None,
    max_target_length: int | None = None,
    template: str | None = None,
    truncation: Truncation = "longest_first",
    limits: DataLimits | None = None,
    source: str = "data",
    labelled: bool = True,
    seed: int = 0,
) -> TokenizedDataset:
    """Tokenize rows for a task.

    Args:
        rows: The rows, as `read_rows` returns them.
        task: One of `modelzoo.data.tasks.TASKS`.
        tokenizer: The tokenizer of the model.
        columns: Column by role (`{"text_a": "question", "label": "answer"}`); roles that it leaves out are found by name.
        label_names: Names of the labels by id; None takes them from the rows. Give the training data's to all other splits.
        max_length: Tokens of the longest item, without those of a target that a decoder writes; None for the smaller of the
            tokenizer's and the model's limit.
        max_target_length: Tokens of the longest target that a decoder writes; None for max_length.
        template: Named chat template; None for the tokenizer's own.
        truncation: Which text loses tokens when a row is longer.
        limits: What the model can take.
        source: What the rows are called in errors, such as the file's name.
        labelled: False ignores labels (prediction).
        seed: Seed of what is hidden anew in each epoch (masked_lm; seq2seq_lm on plain texts).

    Raises:
        DataError: If a row, a column, a label or a limit is wrong; it names the row, counted from 1.
    """
    limits = limits or DataLimits()
    known = [length for length in (max_length, tokenizer.model_max_length, limits.max_length) if length is not None]
    if not known:
        raise DataError(f"{source}: expected max_length, as neither tokenizer nor model sets a limit, found none")
    recipe = Recipe(
        task=task,
        tokenizer=tokenizer,
        max_length=max_length if max_length is not None else min(known),
        max_target_length=max_target_length,
        template=template,
        columns=columns,
        label_names=label_names,
        truncation=truncation,
        window_stride=limits.window_stride,
        source=source,
        labelled=labelled,
        seed=seed,
    )
    return TokenizedDataset.from_rows(rows, recipe, limits)


def _kept_items(encoded: EncodedRows, recipe: Recipe, limits: DataLimits, num_rows: int) -> list[int]:
    """Return the items with a target, or refuse if too many have none."""
    empty = set(encoded.empty_rows)
    kept = [item for item, encoding in enumerate(encoded.encodings) if encoding.row not in empty]
    if task_spec(recipe.task).targets == "token" and encoded.labels is not None:
        labels: list[Any] = encoded.labels
        lost = [item for item in kept if all(label == IGNORED for label in labels[item])]
        if len(lost) > limits.max_lost_share * num_rows:
            row = encoded.encodings[lost[0]].row + 1
            raise DataError(
                f"{recipe.source}: row {row} has no target after truncation to {recipe.max_length} tokens, and {len(lost)} of "
                f"{num_rows} rows are like it, limit {limits.max_lost_share:.0%}; raise data.max_length or repair the rows"
            )
        kept = sorted(set(kept) - set(lost))
    if not kept:
        raise DataError(f"{recipe.source}: expected rows with text, found {num_rows} rows without any")
    return kept
