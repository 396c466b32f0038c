"""Bytes that a forward keeps for its backward, in closed form, by block and by what they are.

After Korthikanti et al. (2022), section 4.1, which counts what each operation of a layer saves, for the operations of
`modelzoo.layers`: attention without stored weights where a fused kernel runs, grouped heads, gates, RMS norms in half precision
(which keep a float32 copy), dropout masks of one byte, packed rows. With n tokens, b bytes a value, D, F, N, K, H as in
`modelzoo.layers` and t tensor ranks:

    layer norm           b n D + 8 n                       its input, mean and deviation
    RMS norm             b n D + 4 n, and the normed b n D where it is no fused kernel; the input in float32 in half precision
    input of the maps    b n D                             once for query, key and value
    attention operands   b (n N H + 2 m K H) / t           m tokens of keys
    attention weights    (4 + 1 + b) N sum(T S) / t        with dropout on a CPU, or a learned bias; else 4 n N
    learned bias         8 sum(T S)                        once a stack, numbers of buckets; itself only for what is computed again
    rotary phases        8 n H                             once a stack; in half precision a block casts 4 more of b n H
    attention output     b n N H / t                       twice where sequences are packed and the kernel is fused
    network              b n D + b n F c / t               c = 2 (GELU), 1 (ReLU), 4 (gated), 3 (gated ReLU)
    dropout              n D a mask

What is computed again keeps its input, b n D (none where it waits on disk: buffers).
`selective` keeps the products of all maps and the attention's output too.
A compiled block keeps what separates matrix products and can be had from nothing nearer: the norms' inputs, the attention's
operands, gate and inner map (the smallest cut of its graph, as torch.compile's partitioner seeks).
"""

from collections import Counter
from dataclasses import dataclass

from modelzoo.config.parallel import recomputed
from modelzoo.plan.parts import AttentionPart, FeedForwardPart, MixturePart, ModelParts, NormPart, Part, UnitParts
from modelzoo.plan.workload import Workload

__all__ = ["UnitActivations", "norm_activations", "unit_activations"]

KEPT_ACTIVATIONS = {"relu": 1, "relu2": 2, "quick_gelu": 3, "gelu_10": 3, "tanh": 1, "sigmoid": 1, "linear": 1}
"""Tensors of F features that an activation and the map after it keep; 2 for all others: the activation's input and its output."""


@dataclass(frozen=True, slots=True)
class UnitActivations:
    """What a unit keeps from its forward to its backward."""

    kept: int
    """Bytes."""
    again: int
    """Bytes that are computed again, and then exist while its backward runs."""
    work: int
    """Bytes of what its backward holds beside: gradients of its widest activations."""
    by_kind: dict[str, int]
    """`kept` by what it is."""


def unit_activations(model: ModelParts, work: Workload, *, tensor: int = 1) -> list[UnitActivations]:
    """Return what every block keeps, in forward order.

    Args:
        model: Its units.
        work: Of a rank.
        tensor: Ranks that compute a sample together.
    """
    work = work.behind(model.prompt_tokens)
    found = []
    blocks = model.blocks
    chosen = recomputed("blocks" if work.recompute.startswith("products") else work.recompute, len(blocks))
    for number, unit in enumerate(blocks, start=1):
        is_last = number == len(blocks) and model.reads_one_token
        sizes = _Sizes(work, tensor, is_decoder=unit.is_decoder, queries=work.sequences if is_last else None)
        whole = _kept(unit, sizes)
        total = sum(whole.values())
        backward = _work(unit, sizes)
        if chosen[number - 1]:
            first = sizes.value * sizes.all_tokens * model.hidden_size
            kept = {"inputs of blocks": 0 if work.offloads_inputs else first}
            if work.recompute == "selective" or work.recompute.startswith("products"):
                every = int(work.recompute.split()[1]) if work.recompute.startswith("products") else 1
                kept |= _products(unit, sizes, every)
            # what is computed again begins with the input, in the same memory
            found.append(UnitActivations(sum(kept.values()), total - first, backward, kept))
        else:
            found.append(UnitActivations(total, 0, backward, dict(whole)))
    return found


class _Sizes:
    """Token counts of a unit.

    Args:
        work: Of a rank.
        tensor: Ranks that compute a sample together.
        is_decoder: Whether it works on the target side.
        queries: Tokens that it computes the result of, where it is not all.
    """

    def __init__(self, work: Workload, tensor: int, *, is_decoder: bool, queries: int | None) -> None:
        self.value, self.tensor, self.work = work.value_bytes, tensor, work
        own = (work.target_lengths or work.lengths) if is_decoder else work.lengths
        self.all_tokens = sum(own)
        self.tokens = self.all_tokens if queries is None else queries
        self.context_tokens = work.batch_tokens
        self.pairs = sum(length * length for length in own) if queries is None else self.all_tokens
        self.context_pairs = sum(a * b for a, b in zip(own, work.lengths, strict=True))


def norm_activations(part: NormPart, tokens: int, work: Workload) -> int:
    """Return the bytes that a norm keeps.

    Args:
        part: The norm.
        tokens: That it norms.
        work: Of a rank.
    """
    size, value = tokens * part.size, work.value_bytes
    if not part.is_rms:
        return size * value + 8 * tokens
    if work.is_compiled or (value == 4 and not work.is_host):
        return size * value + 4 * tokens
    # the input in float32, and what is normed before the weight is applied
    return size * (4 + value) + 4 * tokens


def _kept(unit: UnitParts, sizes: _Sizes) -> Counter[str]:
    """Return the bytes that a block keeps when nothing is computed again."""
    kept: Counter[str] = Counter()
    is_first = True
    for part in unit.parts:
        if isinstance(part, NormPart):
            # the last block of a classifier norms all tokens before its attention and the read ones after it
            tokens = sizes.tokens if not is_first or not isinstance(unit.parts[0], NormPart) else sizes.all_tokens
            kept["norms"] += norm_activations(part, tokens, sizes.work)
        elif isinstance(part, AttentionPart):
            kept.update(_attention(part, sizes))
        elif isinstance(part, FeedForwardPart):
            kept.update(_feed_forward(part, sizes))
        else:
            kept.update(_mixture(part, sizes))
        is_first = False
    return kept


def _stores_weights(part: AttentionPart, sizes: _Sizes) -> bool:
    return (part.dropout > 0 and sizes.work.is_host) or part.has_bias


def _attention(part: AttentionPart, sizes: _Sizes) -> Counter[str]:
    value, t = sizes.value, sizes.tensor
    wide, narrow = part.num_heads * part.head_size, part.num_key_value_heads * part.head_size
    keys = sizes.context_tokens if part.is_cross else sizes.all_tokens
    pairs = sizes.context_pairs if part.is_cross else sizes.pairs
    stores = _stores_weights(part, sizes)
    kept: Counter[str] = Counter()
    if not sizes.work.is_compiled:
        kept["inputs of maps"] = value * part.hidden_size * (sizes.tokens if part.is_cross else sizes.all_tokens)
    narrow = wide if stores else narrow
    # with dropout on a CPU the scores are computed from queries and keys in float32
    scored = 4 if stores and sizes.work.is_host else value
    kept["attention operands"] = (scored * (sizes.tokens * wide + keys * narrow) + value * keys * narrow) // t
    if part.has_rotary and value < 4 and not sizes.work.is_compiled:
        kept["rotary phases"] = 4 * value * sizes.all_tokens * part.head_size
    if stores and part.is_causal:
        kept["attention masks"] = pairs
    if stores:
        kept["attention weights"] = (4 + (1 + value if part.dropout else 0)) * part.num_heads * pairs // t
    elif sizes.work.is_packed and sizes.work.is_host and part.window is not None:
        kept["attention masks"] = value * pairs
    copies = 2 if sizes.work.is_packed and not stores and not sizes.work.is_compiled else 1
    kept["attention output"] = (value * sizes.tokens * wide * copies + (0 if stores else 4 * sizes.tokens * part.num_heads)) // t
    if part.has_head_norms:
        both = NormPart(wide + narrow, is_rms=True)
        kept["norms"] += norm_activations(both, keys, sizes.work) // t
    kept["dropout"] += sizes.tokens * part.hidden_size if part.output_dropout else 0
    return kept


def _feed_forward(part: FeedForwardPart, sizes: _Sizes) -> Counter[str]:
    value, t, tokens = sizes.value, sizes.tensor, sizes.tokens
    inner = tokens * part.intermediate_size
    count = KEPT_ACTIVATIONS.get(part.activation, 2)
    if part.is_gated:
        count = 3 if part.activation == "relu" else 4
    elif part.dropout and count == 1:
        count = 2
    if sizes.work.is_compiled:
        count = 2 if part.is_gated else 1
    kept: Counter[str] = Counter()
    if not part.shares_input and not sizes.work.is_compiled:
        kept["inputs of maps"] = value * tokens * part.hidden_size
    kept["network"] = value * inner * count // t
    kept["dropout"] = (inner // t if part.dropout else 0) + (tokens * part.hidden_size if part.output_dropout else 0)
    return kept


def _mixture(part: MixturePart, sizes: _Sizes) -> Counter[str]:
    value, tokens, chosen = sizes.value, sizes.tokens, sizes.tokens * part.top_k
    return Counter(
        {
            "inputs of maps": value * tokens * part.hidden_size,
            "router": tokens * part.num_experts * 4 + chosen * 8,
            "network": value * chosen * (2 * part.hidden_size + 4 * part.intermediate_size // sizes.tensor),
            "dropout": tokens * part.hidden_size if part.output_dropout else 0,
        }
    )


def _products(unit: UnitParts, sizes: _Sizes, every: int) -> Counter[str]:
    """Return the bytes of the products that are kept: those of every map, or of every other, and the attention's output."""
    value, t, tokens = sizes.value, sizes.tensor, sizes.tokens
    maps: list[int] = []
    kept: Counter[str] = Counter()
    for part in unit.parts:
        if isinstance(part, AttentionPart):
            wide, narrow = part.num_heads * part.head_size // t, part.num_key_value_heads * part.head_size // t
            keys = sizes.context_tokens if part.is_cross else sizes.all_tokens
            maps += [tokens * wide, keys * narrow, keys * narrow, tokens * part.hidden_size]
            pairs = sizes.context_pairs if part.is_cross else sizes.pairs
            stores = _stores_weights(part, sizes)
            kept["attention output"] += value * tokens * wide + (
                4 * part.num_heads * pairs // t if stores else 4 * tokens * part.num_heads // t
            )
        elif isinstance(part, FeedForwardPart):
            inner = tokens * part.intermediate_size // t
            maps += [*([inner] if part.is_gated else []), inner, tokens * part.hidden_size]
        elif isinstance(part, MixturePart):
            inner = tokens * part.top_k * part.intermediate_size // t
            maps += [tokens * part.num_experts, inner, inner, tokens * part.top_k * part.hidden_size]
    kept["products"] = value * sum(maps[::every])
    return kept


def _work(unit: UnitParts, sizes: _Sizes) -> int:
    """Return what a block's backward holds beside its activations; when it reaches a part, those of later ones are gone."""
    largest = gone = 0
    for part in reversed(unit.parts):
        largest = max(largest, _part_work(part, sizes) - gone)
        if isinstance(part, AttentionPart):
            gone += sum(_attention(part, sizes).values())
        elif isinstance(part, FeedForwardPart):
            gone += sum(_feed_forward(part, sizes).values())
    return largest


def _part_work(part: Part, sizes: _Sizes) -> int:
    """Return the gradients that exist beside all that a part keeps, at most.

    Of a network: of what the last map reads, while the activation's input and output wait, and of what is added to. Of an
    attention: of its output and operands, and of its weights where they are kept.
    """
    if isinstance(part, AttentionPart):
        pairs = sizes.context_pairs if part.is_cross else sizes.pairs
        size = 4 * sizes.value * sizes.tokens * part.num_heads * part.head_size // sizes.tensor
        if _stores_weights(part, sizes):
            longest = max(sizes.work.lengths, default=0)
            # packed rows are attended to one after the other
            size += 4 * part.num_heads * (longest * longest if sizes.work.is_packed else pairs) // sizes.tensor
        return size
    if isinstance(part, FeedForwardPart | MixturePart):
        chosen = part.top_k if isinstance(part, MixturePart) else 1
        is_simple = isinstance(part, FeedForwardPart) and not part.is_gated and KEPT_ACTIVATIONS.get(part.activation, 2) == 2
        wide = (1 if is_simple else 2) * part.intermediate_size * chosen // sizes.tensor + 2 * part.hidden_size
        return sizes.value * sizes.tokens * wide
    return 0
