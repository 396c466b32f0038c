"""Token stores: texts that are tokenized once, memory-mapped, and trained on by any number of processes."""

from modelzoo.data.store.build import BuildProgress, StoreReport, build_store
from modelzoo.data.store.indexed import IndexedTokens
from modelzoo.data.store.manifest import is_store, read_manifest
from modelzoo.data.store.stored_dataset import StoredDataset

__all__ = ["BuildProgress", "IndexedTokens", "StoreReport", "StoredDataset", "build_store", "is_store", "read_manifest"]
