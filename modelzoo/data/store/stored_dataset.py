"""A token store as a data set: documents cut into samples by arithmetic, whose ids are read from disk when a batch needs them."""

import hashlib
import json
from pathlib import Path

from modelzoo.data.limits import DataLimits, DataReport
from modelzoo.data.masking import IGNORED
from modelzoo.data.samples import Samples
from modelzoo.data.store.indexed import IndexedTokens
from modelzoo.data.store.manifest import BIN, MANIFEST, StoreManifest, read_manifest, tokenizer_fingerprint
from modelzoo.data.tasks import Item, Recipe, task_spec
from modelzoo.errors import DataError

__all__ = ["StoredDataset"]


class StoredDataset(Samples):
    """Samples of a store, the same as those of its texts in memory.

    What stays in memory is twelve bytes a sample and a document's place and length.

    Args:
        folder: Of the store.
        recipe: How its texts are cut: a language modelling task.
        limits: The limits to check.

    Raises:
        DataError: If the task does not learn from plain texts, the tokenizer is not the store's, or a limit is exceeded.
    """

    def __init__(self, folder: str | Path, recipe: Recipe, limits: DataLimits) -> None:
        self._manifest = read_manifest(folder)
        _check(self._manifest, recipe, limits)
        cut = task_spec(recipe.task).cut
        if cut is None:
            raise DataError(f"{recipe.source}: a token store holds plain texts, which {recipe.task} does not learn from")
        self._cut = cut(recipe)
        self._tokens = IndexedTokens(Path(folder) / BIN, self._manifest.block_crc32)
        counted = (len(self._tokens), int(self._tokens.lengths.sum()))
        if counted != (self._manifest.documents, self._manifest.tokens):
            raise DataError(
                f"{recipe.source}: expected {self._manifest.documents} documents of {self._manifest.tokens} tokens, as {MANIFEST} "
                f"says, found {counted[0]} of {counted[1]}; build the store again"
            )
        self._has_types = recipe.tokenizer.has_token_types
        documents, self._first, counts = self._cut.pieces(self._tokens.lengths[: limits.max_rows])
        self._counts: list[int] = counts.tolist()
        if not self._counts:
            raise DataError(f"{recipe.source}: expected texts, found none that is long enough for a sample")
        draws = self._cut.draws
        drawn = [draws.lengths(count) if draws is not None else (count, 0) for count in self._counts]
        super().__init__(
            task=recipe.task,
            source=recipe.source,
            rows=documents.tolist(),
            lengths=[sum(pair) for pair in drawn],
            target_lengths=[target for _, target in drawn] if drawn[0][1] else None,
            form=self._cut.form,
            pad_id=recipe.tokenizer.pad_id,
            is_labelled=recipe.labelled,
        )
        self.report = DataReport(
            rows=len(set(self.rows)),
            items=len(self),
            tokens=sum(self.lengths),
            longest=max(self.lengths),
            num_targets=self._cut.num_targets(self._counts),
        )
        self.fingerprint = self._store_fingerprint(recipe)

    def item(self, index: int, *, epoch: int = 0) -> Item:
        """Return one sample: input_ids, token_type_ids if the tokenizer makes them, and labels, lists of ints."""
        count, first = self._counts[index], int(self._first[index])
        ids = self._cut.read(self._tokens, self.rows[index], first, count)
        item: Item = {"input_ids": ids}
        if self._has_types:
            item["token_type_ids"] = [0] * count
        if not self.is_labelled:
            return item
        draws = self._cut.draws
        return item | ({"labels": [IGNORED, *ids[1:]]} if draws is None else draws.draw(ids, epoch=epoch, row=index))

    def num_targets(self, index: int, *, epoch: int = 0) -> int:
        """Return how many tokens of a sample are learned."""
        return sum(label != IGNORED for label in self.item(index, epoch=epoch).get("labels", ()))

    def _store_fingerprint(self, recipe: Recipe) -> str:
        facts = ["modelzoo.data.store 1", self.task, self._manifest.sha256, recipe.max_length, len(self), self.report.tokens]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _check(manifest: StoreManifest, recipe: Recipe, limits: DataLimits) -> None:
    """Hold the store against tokenizer and model."""
    if manifest.tokenizer != tokenizer_fingerprint(recipe.tokenizer):
        raise DataError(
            f"{recipe.source}: the store's ids were made by another tokenizer than the model's; build it again with this model, or "
            "train the model it was built for"
        )
    if limits.vocab_size is not None and manifest.vocab_size > limits.vocab_size:
        found = f"ids below {manifest.vocab_size}"
        raise DataError(f"{recipe.source}: {found}, limit {limits.vocab_size} rows of the model's embedding")
    if limits.max_length is not None and recipe.max_length > limits.max_length:
        raise DataError(f"{recipe.source}: pieces of {recipe.max_length} tokens, limit {limits.max_length} (the model's positions)")
