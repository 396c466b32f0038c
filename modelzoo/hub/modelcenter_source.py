"""A ModelCenter checkpoint opened: what its tensors say, and whether they are those of its config."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modelzoo.converters import Mapping, Match, Task, TensorInfo, match
from modelzoo.converters.matching import raise_if_unfit
from modelzoo.converters.modelcenter import FAMILIES, Layout, head_prefix
from modelzoo.converters.modelcenter_config import read_values
from modelzoo.converters.modelcenter_shapes import shape_of
from modelzoo.converters.modelcenter_vit import VIT_ANCHOR
from modelzoo.errors import CheckpointError, listing
from modelzoo.hub.checkpoint import Checkpoint
from modelzoo.hub.files import shown

__all__ = ["FILE", "SEQ2SEQ", "TABLE", "Source", "matched", "opened"]

FILE = "pytorch_model.pt"
"""Where ModelCenter keeps a model's weights."""

TABLE = "input_embedding.weight"
"""ModelCenter's name of the token table, in every family of texts."""

SEQ2SEQ = ("t5", "mt5")
"""The families whose residual was divided."""

_ENCODERS = ("bert", "roberta", "longformer")
_STACKS = ("encoder", "decoder")


@dataclass(frozen=True)
class Source:
    """An open checkpoint and what it is.

    Attributes:
        checkpoint: The file.
        keys: The file's key of each name as the tables write it.
        family: Hugging Face's model_type.
        config: The config.json as it stands.
        values: Its values by our names; `vocab_size` without padding.
        layout: What the tensors say.
    """

    checkpoint: Checkpoint
    keys: dict[str, str]
    family: str
    config: dict[str, Any]
    values: dict[str, Any]
    layout: Layout

    @property
    def mapping(self) -> Mapping:
        """The table of names for this file."""
        return FAMILIES[self.family][0](self.values, self.layout)

    @property
    def task(self) -> Task:
        """What the written model is for."""
        has_head = self.layout.has_head or self.family not in _ENCODERS
        return FAMILIES[self.family][1] if has_head else "base"

    def info(self, name: str) -> TensorInfo:
        """Return what the file says of a tensor."""
        return self.checkpoint.tensors[self.keys[name]]

    def read(self, name: str) -> Tensor:
        """Return a tensor."""
        return self.checkpoint.read(self.keys[name])


def opened(checkpoint: Checkpoint, family: str, config: dict[str, Any], scale: int) -> Source:
    """Return the file with its names as the tables write them, and what its tensors say.

    A prefix before all of a wrapped model's names (`bert.`, `module.`) is taken off.

    Args:
        checkpoint: The open file.
        family: Hugging Face's model_type.
        config: The config.json as it stands.
        scale: What the residual was divided by.

    Raises:
        ConfigError: The config is not of the family.
        CheckpointError: The sizes that the config states are not those of the tensors, or what the config leaves open is not in
            them.
    """
    values = read_values(family, config)
    anchor = VIT_ANCHOR if family == "vit" else TABLE
    tables = [key for key in checkpoint.tensors if key == anchor or key.endswith(f".{anchor}")]
    where = checkpoint.folder / FILE
    if len(tables) != 1:
        few = ", ".join(shown(key) for key in (tables or list(checkpoint.tensors))[:3]) or "nothing"
        raise CheckpointError(f"{where}: {anchor}: expected once in a checkpoint of ModelCenter's, found {few}")
    prefix = tables[0].removesuffix(anchor)
    keys: dict[str, str] = {}
    for key in checkpoint.tensors:
        name = key.removeprefix(prefix)
        if name in keys:
            raise CheckpointError(f"{where}: {shown(key)}: expected once, found also as {shown(keys[name])}. Remove one of them")
        keys[name] = key
    found = Source(checkpoint, keys, family, config, values, Layout(residual_scale=scale))
    if family == "vit":
        _check_sizes(found, _vit_sizes(values))
        return found
    layout, vocab_size = _layout(found, scale)
    found = Source(checkpoint, keys, family, config, {**values, "vocab_size": vocab_size}, layout)
    _check_stated(found)
    return found


_Stated = tuple[str, int, str, int]
"""Tensor, dimension, config key, size."""


def _layout(found: Source, scale: int) -> tuple[Layout, int]:
    """Read from the tensors what the config leaves open; return also the size of the vocabulary without padding."""
    names = found.keys
    stacks = [stack for stack in _STACKS if any(name.startswith(f"{stack}.layers.") for name in names)]
    head = head_prefix(found.family)
    has_head = any(name.startswith(head) for name in names)
    padding = _padding_rows(found)
    layout = Layout(
        stack=stacks[0] if found.family not in SEQ2SEQ and stacks else "encoder",
        has_head=has_head,
        has_pooler=any(name.startswith("pooler.") for name in names),
        is_tied=_is_tied(found, has_head=has_head) if found.family in _ENCODERS else _is_output_tied(found, scale),
        padding_rows=padding,
        residual_scale=scale,
    )
    rows = found.values["vocab_size"]
    table = found.info(TABLE).shape
    return layout, table[0] - padding if padding else rows


def _padding_rows(found: Source) -> int:
    """Return 1 where GPT-2's table has the row of zeros that makes its length even, else 0."""
    shape = found.info(TABLE).shape
    rows = found.values["vocab_size"]
    if found.family != "gpt2" or len(shape) != 2 or shape[0] not in (rows, rows + 1) or shape[0] < 2:
        return 0
    last = found.checkpoint.read(found.keys[TABLE], [slice(shape[0] - 1, shape[0]), slice(0, shape[1])])
    is_zero = not last.count_nonzero()
    if shape[0] == rows + 1 and not is_zero:
        raise CheckpointError(
            f"{found.checkpoint.folder / FILE}: {found.keys[TABLE]}: row {rows}: expected zeros, because config.json says "
            f"vocab_size={rows}, found values up to {float(last.abs().max()):g}. If it is a token, set vocab_size to {rows + 1}"
        )
    return int(is_zero)


def _is_tied(found: Source, *, has_head: bool) -> bool:
    """Return whether BERT's output layer is the token table: by the config, or because both hold the same."""
    tied, name = found.values["tied"], "lm_head.decoder.weight"
    if tied or not has_head or (tied is None and name not in found.keys):
        return True
    if name not in found.keys:
        return False  # and the table of names will miss it
    if found.info(name).shape == found.info(TABLE).shape and torch.equal(found.read(name), found.read(TABLE)):
        return True
    if tied is None:
        raise CheckpointError(
            f"{found.checkpoint.folder / FILE}: {found.keys[name]}: expected the values of {found.keys[TABLE]}, found others, and "
            'config.json does not say which of the two was the output layer. Add "tied": true (the token table) or false to it'
        )
    return False


def _is_output_tied(found: Source, scale: int) -> bool:
    """Return whether a language model's output layer is the token table.

    ModelCenter's configs of the published T5 v1.0 say that it is not, and the output layer is the table before the division.
    """
    keys = [key for key in ("output_projection.weight", "output_projection.w.weight") if key in found.keys]
    if found.values["tied"] or found.family != "t5" or len(keys) != 1 or found.info(keys[0]).shape != found.info(TABLE).shape:
        return bool(found.values["tied"])
    table, output = found.read(TABLE).float() * scale, found.read(keys[0]).float()
    # Twice the rounding of float16, and of its smallest steps, which the division made coarser.
    return bool(torch.allclose(table, output, rtol=2**-10, atol=scale * 2**-25))


def _check_stated(found: Source) -> None:
    """Compare the sizes that the config states, or leaves to ModelCenter's defaults, with the tensors."""
    values, layout = found.values, found.layout
    first = f"{layout.stack}.layers.0"
    inner = next((name for name in ("w", "w_1") if f"{first}.ffn.ffn.w_in.{name}.weight" in found.keys), "w")
    stated = [
        (TABLE, 0, "vocab_size", values["vocab_size"] + layout.padding_rows),
        (TABLE, 1, "dim_model", values["hidden_size"]),
        (f"{first}.self_att.self_attention.project_q.weight", 0, "num_heads x dim_head", values["num_heads"] * values["head_size"]),
        (f"{first}.ffn.ffn.w_in.{inner}.weight", 0, "dim_ff", values["intermediate_size"]),
    ]
    if "max_positions" in values:
        rows = values.get("position_rows", values["max_positions"])
        name = "position_size + 2" if "position_rows" in values else "position_size"
        stated.append(("position_embedding.weight", 0, name, rows))
    if "type_vocab_size" in values:
        stated.append(("token_type_embedding.weight", 0, "type_size", values["type_vocab_size"]))
    _check_sizes(found, stated)


def _vit_sizes(values: dict[str, Any]) -> list[_Stated]:
    """Return the sizes that a ViT's config states."""
    return [
        (VIT_ANCHOR, 0, "hidden_size", values["hidden_size"]),
        (VIT_ANCHOR, 1, "channels_in", values["num_channels"]),
        (VIT_ANCHOR, 2, "patch_size", values["patch_size"][0]),
        ("patch_embed.pos_embed", 1, "(img_size / patch_size) ** 2 + 1", values["num_positions"]),
        ("blocks.layers.0.ffn.ffn.w_in.w.weight", 0, "mlp_size", values["intermediate_size"]),
        ("head.weight", 0, "num_classes", values["num_labels"]),
    ]


def _check_sizes(found: Source, stated: list[_Stated]) -> None:
    """Compare stated sizes, and numbers of layers, with the tensors."""
    lines = []
    for name, dim, field, expected in stated:
        if name in found.keys and len(found.info(name).shape) > dim and found.info(name).shape[dim] != expected:
            origin = "" if set(field.split()) & set(found.config) else " (ModelCenter's default)"
            size = found.info(name).shape[dim]
            lines.append(f"config.json: {field}: expected {size}, as {found.keys[name]} has, found {expected}{origin}")
    for stack, field, count in _stacks(found):
        numbers = {name.split(".")[2] for name in found.keys if name.startswith(f"{stack}.layers.")}
        if numbers and len(numbers) != count:
            origin = "" if field in found.config else " (ModelCenter's default)"
            lines.append(f"config.json: {field}: expected {len(numbers)}, as {FILE} has, found {count}{origin}")
    if lines:
        raise CheckpointError(
            f"{found.checkpoint.folder}: the config and the weights are not of one {found.family}:\n{listing(lines)}"
        )


def _stacks(found: Source) -> list[tuple[str, str, int]]:
    """Return name, config key and number of layers of each stack."""
    values = found.values
    if found.family in SEQ2SEQ:
        counts = (("encoder", values["num_layers"]), ("decoder", values["num_decoder_layers"]))
        return [(side, f"num_{side}_layers", count) for side, count in counts]
    return [("blocks" if found.family == "vit" else found.layout.stack, "num_layers", values["num_layers"])]


def matched(found: Source, *, allow_float64: bool) -> Match:
    """Compare all names, shapes and dtypes, and the pairs that must hold the same values.

    Args:
        found: The open checkpoint.
        allow_float64: Whether float64 may be read; the caller has then stated the dtype that it becomes.

    Raises:
        CheckpointError: They do not agree.
    """
    mapping, values = found.mapping, found.values
    counts = {"layer": values["num_layers"], "decoder_layer": values.get("num_decoder_layers", 0)}
    shapes: dict[str, tuple[int, ...]] = {}
    for group in mapping.expected(counts):
        theirs = [shape_of(name, values, found.layout) for name in group.theirs]
        shapes.update(zip(group.ours, group.rule.op.shapes(theirs), strict=True))
    fit = match(mapping, shapes, {name: found.info(name) for name in found.keys}, allow_float64=allow_float64)
    raise_if_unfit(fit, str(found.checkpoint.folder))
    unequal = [
        f"{FILE}: {found.keys[alias]}: expected the values of {found.keys[name]}, found others: the model has one norm for both"
        for alias, name in fit.equal
        if not torch.equal(found.read(alias), found.read(name))
    ]
    if unequal:
        raise CheckpointError(f"{found.checkpoint.folder}: not a {found.family} of Hugging Face's:\n{listing(unequal)}")
    return fit
