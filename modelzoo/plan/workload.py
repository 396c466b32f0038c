"""What one rank computes in a step: rows, tokens and micro-batches, and in which form."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from modelzoo.config import RunSettings
from modelzoo.errors import ConfigError

__all__ = ["Workload", "evaluated_tokens", "workload_of"]

MASKED_SHARE = 0.15
"""Of tokens that a masked language model is scored on (Devlin et al., 2019, section 3.1)."""
VOCABULARY_LOGITS = 2**26
"""Most logits of one forward of an evaluation over a vocabulary (256 MiB of float32)."""
VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def evaluated_tokens(batch_tokens: int, vocab_size: int | None) -> int:
    """Return the most tokens of one forward of an evaluation; a longer sample stands alone.

    Args:
        batch_tokens: As `evaluation.batch_tokens`.
        vocab_size: Given where the logits are over the vocabulary: bounds the tokens so that they take 256 MiB.
    """
    return batch_tokens if vocab_size is None else min(batch_tokens, max(VOCABULARY_LOGITS // vocab_size, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One micro-batch of a rank, and how many make a step."""

    lengths: tuple[int, ...]
    """Tokens of each row, or of each of its choices, of the largest micro-batch."""
    num_rows: int = 0
    """Of the largest micro-batch, where its lengths are those of choices; 0 for as many as lengths."""
    micro_batches: int = 1
    """Of a step, on a rank."""
    tokens: float = 0.0
    """Real tokens of a rank's whole step; 0 for those of the largest micro-batch times the number of them."""
    target_lengths: tuple[int, ...] = ()
    """Of the decoder of an encoder-decoder; empty for the same."""
    precision: str = "float32"
    recompute: str = "none"
    """As `ParallelConfig.recompute`; "products 2" recomputes all but every other matrix product (torchtitan's "op")."""
    offloads_inputs: bool = False
    """Whether the inputs of blocks that are computed again wait on disk."""
    is_compiled: bool = False
    is_host: bool = True
    """Whether it runs on a CPU, where attention with dropout holds its weights, and dropout is drawn another way."""
    is_packed: bool = True
    """Whether padding is dropped at the door."""
    lead: int = 0
    """Keys that stand before those of each row in attention (an adapter's prefix)."""
    has_small_moments: bool = False
    """Whether the optimizer keeps its moments in eight bits."""
    whole_scores: bool = False
    """Whether a language model's scores exist for all tokens at once; ours do not."""

    @property
    def rows(self) -> int:
        """Of the largest micro-batch."""
        return self.num_rows or len(self.lengths)

    @property
    def sequences(self) -> int:
        """Of the largest micro-batch: its rows, or the choices of its rows."""
        return len(self.lengths)

    @property
    def batch_tokens(self) -> int:
        """Tokens of the largest micro-batch."""
        return sum(self.lengths)

    @property
    def target_tokens(self) -> int:
        """Tokens that a decoder beside an encoder works on."""
        return sum(self.target_lengths or self.lengths)

    @property
    def step_tokens(self) -> float:
        """Tokens of a rank's step."""
        return self.tokens or float(self.batch_tokens * self.micro_batches)

    def behind(self, prompt_tokens: int) -> "Workload":
        """Return the same rows behind a prompt.

        Args:
            prompt_tokens: Of each row.
        """
        if not prompt_tokens:
            return self
        lengths = tuple(length + prompt_tokens for length in self.lengths)
        return dataclasses.replace(self, lengths=lengths, tokens=self.tokens * sum(lengths) / max(self.batch_tokens, 1))

    @property
    def value_bytes(self) -> int:
        """Bytes of a value that forward and backward compute with."""
        return VALUE_BYTES[self.precision]


def workload_of(
    settings: RunSettings, *, data_ranks: int, max_length: int, is_host: bool, lengths: Sequence[int] | None = None
) -> Workload:
    """Return what a rank of a recipe computes.

    Args:
        settings: Of the run.
        data_ranks: Ranks that share a batch.
        max_length: Of the model.
        is_host: Whether it runs on CPUs.
        lengths: Tokens of each training row, those of a decoder beside an encoder included; without them every row is taken as
            long as it may be.

    Raises:
        ConfigError: There are more ranks than rows of a batch.
    """
    train, added = settings.train, settings.adapter.added_tokens
    longest = min(settings.data.max_length, max_length - settings.adapter.positions_taken)
    written = _written(settings, longest)
    known = sorted(lengths, reverse=True) if lengths else None
    mean = sum(known) / len(known) if known else float(longest + written)
    if train.batch_tokens is not None:
        share = max(-(-train.batch_tokens // data_ranks), known[0] if known else longest + written)
        rows = max(round(share / mean), 1)
    else:
        assert train.batch_size is not None
        if data_ranks > train.batch_size:
            raise ConfigError(
                f"train.batch_size={train.batch_size} rows cannot be shared by {data_ranks} ranks; use at least {data_ranks}"
            )
        rows = -(-train.batch_size // data_ranks)
    if known:  # no batch reaches over the end of an epoch
        rows = min(rows, -(-len(known) // data_ranks))
    micro = min(train.micro_batch_size or rows, rows)
    chosen = tuple(known[:micro]) if known and len(known) >= micro else (longest + written,) * micro
    targets = tuple(min(written, length // 2) for length in chosen) if written else ()
    if settings.model.task == "multiple_choice":
        chosen = tuple(part for length in chosen for part in _choices(length, longest))
    read = sum(chosen) - sum(targets)
    return Workload(
        # as dealt out by tokens, a rank's rows are of all lengths; its largest micro-batch is taken to be of the longest ones
        lengths=tuple(added + length - target for length, target in zip(chosen, targets or (0,) * len(chosen), strict=True)),
        target_lengths=targets,
        num_rows=micro,
        micro_batches=-(-rows // micro),
        tokens=rows * (mean * read / sum(chosen) + added),
        precision=settings.parallel.precision,
        recompute=settings.parallel.recompute,
        offloads_inputs=settings.memory.activations == "offload" and settings.memory.disk.path is not None,
        is_compiled=settings.parallel.compile,
        is_host=is_host,
        lead=settings.adapter.positions_taken - added,
        has_small_moments=settings.optimizer.moments == "8bit",
    )


def _written(settings: RunSettings, longest: int) -> int:
    """Return the tokens of a row that a decoder beside an encoder writes at most; 0 where there is no such decoder.

    Of a row whose tokens are known together only, half are taken to be the decoder's, or as many as it may write: a decoder's token
    costs more than an encoder's, and is scored.
    """
    return 0 if settings.model.task != "seq2seq_lm" else settings.data.max_target_length or longest


def _choices(length: int, longest: int) -> tuple[int, ...]:
    """Return the tokens of a row's choices, which attention reads one by one: as few, and as long, as they may be."""
    parts = -(-length // longest)
    return tuple(length // parts + (number < length % parts) for number in range(parts))
