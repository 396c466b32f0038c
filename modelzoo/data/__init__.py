"""Data: reading rows, tokenizing them for a task, and the order in which they are trained on.

The usual way: `read_rows` -> `build_dataset` (with `load_tokenizer`) -> `BatchStream` -> `split_among` -> `micro_batches` ->
`collate`. Each step is a plain function or iterator and can be used alone.
"""

from modelzoo.data.batches import BatchStream, micro_batches, split_among
from modelzoo.data.check_vocab import check_vocab
from modelzoo.data.collate import check_batch, collate, count_targets
from modelzoo.data.dataset import TokenizedDataset, build_dataset
from modelzoo.data.encoding import Encoding, Truncation
from modelzoo.data.limits import DataLimits, DataReport
from modelzoo.data.samples import Samples
from modelzoo.data.sources import read_rows
from modelzoo.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "BatchStream",
    "DataLimits",
    "DataReport",
    "Encoding",
    "Samples",
    "TokenizedDataset",
    "Tokenizer",
    "Truncation",
    "build_dataset",
    "check_batch",
    "check_vocab",
    "collate",
    "count_targets",
    "load_tokenizer",
    "micro_batches",
    "read_rows",
    "split_among",
]
