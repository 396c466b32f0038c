"""What a model is made of, as its costs see it: read off a skeleton on meta, so that any family of the zoo is known."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from modelzoo.adapters import planned_bytes, quantized_maps
from modelzoo.layers import Dropout, Experts, FeedForward, LayerNorm, Linear, MixtureOfExperts, ParallelBlock, RMSNorm
from modelzoo.models.model import Model
from modelzoo.plan.backward import Backward, GradientPath, scores_backward
from modelzoo.plan.block_parts import AttentionPart, FeedForwardPart, MixturePart, NormPart, Part
from modelzoo.runtime.eight_bits import moment_bytes
from modelzoo.runtime.units import find_ties, find_units

__all__ = ["AttentionPart", "FeedForwardPart", "MixturePart", "ModelParts", "NormPart", "Part", "UnitParts", "read_parts"]


@dataclass(frozen=True, slots=True)
class UnitParts:
    """A block, or what is in no block."""

    name: str
    parts: tuple[Part, ...]
    backward: tuple[Backward, ...]
    """Of each part."""
    shapes: tuple[tuple[int, ...], ...]
    """Of its parameters, as one process has them."""
    splits: tuple[bool, ...]
    """Whether a tensor axis cuts each of them."""
    trained: tuple[bool, ...]
    stored: tuple[int, int]
    """Values beside them that are kept in fewer bits than a float, whole on every rank, and their bytes."""
    is_block: bool
    is_decoder: bool
    """Whether it works on the target tokens of an encoder-decoder."""

    @property
    def numel(self) -> int:
        """Values of all its parameters."""
        return sum(math.prod(shape) for shape in self.shapes) + self.stored[0]


@dataclass(frozen=True, slots=True)
class ModelParts:
    """All units of a model, and what lies outside of them."""

    family: str
    task: str
    units: tuple[UnitParts, ...]
    """Blocks in forward order, then what is in no block."""
    hidden_size: int
    vocab_size: int
    num_labels: int
    max_length: int
    embedding_dropout: float
    embeds_norm: bool
    has_decoder: bool
    is_language_model: bool
    """Whether its loss is over the vocabulary."""
    scores_chunks: bool
    """Whether that loss never holds the scores of all tokens."""
    reads_one_token: bool
    """Whether the last block computes one token a row alone (a classifier)."""
    table_size: int
    """Width of the token table, which may not be the blocks'."""
    prompt_tokens: int
    """Learned tokens before every row (CPM-3, CPM-Ant)."""
    trains_scores: tuple[bool, bool]
    """Whether the scores over the vocabulary have gradients of the table, and of the hidden states."""

    @property
    def blocks(self) -> tuple[UnitParts, ...]:
        """The units that are blocks."""
        return tuple(unit for unit in self.units if unit.is_block)

    @property
    def numel(self) -> int:
        """Values of all parameters."""
        return sum(unit.numel for unit in self.units)

    @property
    def stored(self) -> tuple[int, int]:
        """Values that are kept in fewer bits than a float, and their bytes."""
        return sum(unit.stored[0] for unit in self.units), sum(unit.stored[1] for unit in self.units)

    @property
    def trained(self) -> int:
        """Values of the trained parameters."""
        return sum(map(math.prod, self._trained_shapes))

    @property
    def moment_bytes(self) -> int:
        """Bytes of their moments where they are kept in eight bits."""
        return sum(map(moment_bytes, self._trained_shapes))

    @property
    def _trained_shapes(self) -> list[tuple[int, ...]]:
        pairs = (pair for unit in self.units for pair in zip(unit.shapes, unit.trained, strict=True))
        return [shape for shape, is_trained in pairs if is_trained]


def read_parts(model: Model) -> ModelParts:
    """Return what a model is made of.

    Args:
        model: May be on meta.
    """
    blocks = find_units(model)
    tied = {id(parameter) for parameter in find_ties(model)}
    decoder = getattr(model, "decoder", None)
    encoder = getattr(model, "encoder", None)
    decoder_ids = {id(module) for module in decoder.modules()} if isinstance(decoder, nn.Module) else set()
    has_both = isinstance(decoder, nn.Module) and isinstance(encoder, nn.Module)
    names = {id(module): name for name, module in model.named_modules()}
    split = _split_parameters(model)
    stored = {id(linear.weight): planned_bytes(tuple(linear.weight.shape), kind) for linear, kind in quantized_maps(model)}
    seen: set[int] = set(tied)
    path, units = GradientPath(model), []
    for block in blocks:
        own = [parameter for parameter in block.parameters() if id(parameter) not in seen]
        seen.update(id(parameter) for parameter in own)
        is_decoder = has_both and id(block) in decoder_ids
        found = [(part, path.after(module, is_cross=_is_cross(part))) for part, module in _parts(model, block)]
        units.append(_unit(names[id(block)], found, own, split, stored, is_block=True, is_decoder=is_decoder))
    inside = {id(module) for block in blocks for module in block.modules()}
    rest = [parameter for parameter in model.parameters() if id(parameter) in tied or id(parameter) not in seen]
    outside = [
        (NormPart(_norm_size(module), isinstance(module, RMSNorm)), Backward())
        for name, module in model.named_modules()
        if isinstance(module, LayerNorm | RMSNorm) and id(module) not in inside and not name.startswith("head")
    ]
    units.append(_unit("(rest)", outside, rest, split, stored, is_block=False, is_decoder=False))
    config: Any = model.config
    embeddings = getattr(model, "embeddings", model)
    return ModelParts(
        family=model.family,
        task=model.task,
        units=tuple(units),
        hidden_size=int(getattr(config, "hidden_size", units[0].shapes[0][-1] if units[0].shapes else 1)),
        vocab_size=config.vocab_size,
        num_labels=config.num_labels,
        max_length=model.max_length,
        embedding_dropout=_dropout(embeddings),
        embeds_norm=isinstance(getattr(embeddings, "norm", None), nn.Module),
        has_decoder=has_both,
        is_language_model=model.task in ("masked_lm", "causal_lm", "seq2seq_lm"),
        scores_chunks=model.task in ("causal_lm", "seq2seq_lm"),
        reads_one_token=model.task in ("classification", "multiple_choice") and not has_both,
        table_size=int(getattr(getattr(embeddings, "token", None), "embedding_dim", config.hidden_size)),
        prompt_tokens=int(getattr(config, "prompt_length", 0)),
        trains_scores=scores_backward(model),
    )


def _unit(
    name: str,
    parts: Sequence[tuple[Part, Backward]],
    own: Sequence[nn.Parameter],
    split: set[int],
    stored: dict[int, int],
    *,
    is_block: bool,
    is_decoder: bool,
) -> UnitParts:
    sizes = [(parameter.numel(), stored[id(parameter)]) for parameter in own if id(parameter) in stored]
    own = [parameter for parameter in own if id(parameter) not in stored]
    return UnitParts(
        name=name,
        parts=tuple(part for part, _ in parts),
        backward=tuple(each for _, each in parts),
        shapes=tuple(tuple(parameter.shape) for parameter in own),
        splits=tuple(id(parameter) in split for parameter in own),
        trained=tuple(parameter.requires_grad for parameter in own),
        stored=(sum(count for count, _ in sizes), sum(size for _, size in sizes)),
        is_block=is_block,
        is_decoder=is_decoder,
    )


def _split_parameters(model: nn.Module) -> set[int]:
    """Return the parameters that a tensor axis cuts, by the layers' own declarations."""
    found: set[int] = set()
    for module in model.modules():
        kind = getattr(module, "tensor_split", None)
        if kind is None:
            continue
        attached = [child for child in module.children() if hasattr(child, "tensor_parts")]
        for part in attached if isinstance(kind, str) else ():
            cut = getattr(part, "tensor_parts").get(kind, {})  # noqa: B009  # a declaration that `nn.Module` does not know
            found.update(id(parameter) for name, parameter in part.named_parameters(recurse=False) if name in cut)
        for name, parameter in module.named_parameters(recurse=False):
            if name == "weight" or kind in ("column", "vocabulary") or not isinstance(kind, str):
                found.add(id(parameter))
    return found


def _is_cross(part: Part) -> bool:
    return isinstance(part, AttentionPart) and part.is_cross


def _parts(model: nn.Module, block: nn.Module) -> Iterator[tuple[Part, nn.Module]]:
    """Read a block: its norms, attentions and networks."""
    in_attention: set[int] = set()
    in_mixture: set[int] = set()
    has_bias, has_rotary = _positions(model, block)
    for name, module in block.named_modules():
        parent: Any = block.get_submodule(name.rpartition(".")[0]) if "." in name else block
        if is_attention(module):
            in_attention.update(id(part) for part in module.modules() if part is not module)
            is_cross = "cross" in name
            yield _attention(module, parent, is_cross=is_cross, has_bias=has_bias and not is_cross, has_rotary=has_rotary), module
        elif isinstance(module, MixtureOfExperts):
            in_mixture.update(id(part) for part in module.modules() if part is not module)
            experts: Experts = module.experts
            _, inner, hidden = experts.gate.shape
            yield MixturePart(hidden, inner, experts.num_experts, module.router.top_k, _dropout(parent)), module
            if module.shared is not None:
                shared: FeedForward = module.shared.feed_forward  # type: ignore[assignment]  # a SharedExpert
                yield _feed_forward(shared, 0.0, shares_input=True), shared
        elif isinstance(module, FeedForward) and id(module) not in in_mixture:
            shares = isinstance(block, ParallelBlock) and block.feed_forward_norm is None
            yield _feed_forward(module, _dropout(parent), shares_input=shares), module
        elif isinstance(module, LayerNorm | RMSNorm) and id(module) not in in_attention:
            yield NormPart(_norm_size(module), isinstance(module, RMSNorm)), module


def is_attention(module: nn.Module) -> bool:
    """Return whether a module attends: it has heads and the maps to queries and keys."""
    return hasattr(module, "num_heads") and hasattr(module, "head_size") and isinstance(getattr(module, "query", None), nn.Module)


def _attention(module: Any, parent: nn.Module, *, is_cross: bool, has_bias: bool, has_rotary: bool) -> AttentionPart:
    query: Linear = module.query
    return AttentionPart(
        hidden_size=query.in_features,
        num_heads=module.num_heads,
        num_key_value_heads=getattr(module, "num_key_value_heads", module.num_heads),
        head_size=module.head_size,
        dropout=float(getattr(module, "dropout", 0.0) if not isinstance(getattr(module, "dropout", 0.0), nn.Module) else 0.0),
        is_causal=bool(getattr(module, "is_causal", False)),
        is_cross=is_cross,
        has_rotary=has_rotary,
        has_bias=has_bias,
        has_head_norms=getattr(module, "query_norm", None) is not None,
        output_dropout=_dropout(parent),
        window=getattr(module, "window", None),
    )


def _feed_forward(module: FeedForward, output_dropout: float, *, shares_input: bool) -> FeedForwardPart:
    return FeedForwardPart(
        hidden_size=module.up.in_features,
        intermediate_size=module.up.out_features,
        activation=module.activation,
        is_gated=module.gate is not None,
        dropout=module.dropout.p,
        output_dropout=output_dropout,
        shares_input=shares_input,
    )


def _positions(model: nn.Module, block: nn.Module) -> tuple[bool, bool]:
    """Return whether the stack of a block adds a learned bias to the scores, and whether it turns queries and keys."""
    for stack in model.modules():
        layers = getattr(stack, "layers", None)
        if isinstance(layers, nn.ModuleList) and any(each is block for each in layers):
            known = [module for module in (getattr(stack, "position", None), *(getattr(stack, "positions", None) or [])) if module]
            own = [part for part in model.children() if "Position" in type(part).__name__ or "Bias" in type(part).__name__]
            names = [type(module).__name__ for module in [*known, *own]]
            return any("Bias" in name for name in names), any("Rotary" in name for name in names)
    return False, False


def _dropout(module: object) -> float:
    found = getattr(module, "dropout", None)
    return found.p if isinstance(found, Dropout) else 0.0


def _norm_size(module: nn.Module) -> int:
    return int(module.hidden_size)  # type: ignore[arg-type]  # both norms have it
