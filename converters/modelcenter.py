"""ModelCenter's own checkpoints: its tensor names beside Hugging Face's, and what undoes its tricks. Tables only.

"Ours" is Hugging Face's name here and "theirs" is ModelCenter's. In ModelCenter every sublayer has its norm before it:

- BERT, RoBERTa and Longformer: the norm after the embeddings is the attention norm of layer 0, the one after layer i is the
  attention norm of layer i + 1, and the one after the last layer is `output_layernorm`;
- GPT-J: its one norm stands there twice;
- T5: everything that adds to the residual is divided by 100, so that float16 holds it: the token table and `attention_out`, and of
  the feed-forward network w_out by 10 and w (or w_1, behind the gate) by 10;
- GPT-2: the token table has a row of zeros more, to make its length even.
"""

from collections.abc import Callable
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, replace
from typing import Any

from modelzoo.converters.family import Task
from modelzoo.converters.mapping import Ignore, Mapping, Rule, Tied, modules
from modelzoo.converters.modelcenter_vit import vit_mapping
from modelzoo.converters.ops import Chain, Concat, Copy, Operation, Transpose
from modelzoo.converters.value_ops import DropRows, Scale

__all__ = ["FAMILIES", "KEPT", "Layout", "head_prefix"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a file's tensors say that its config does not.

    Attributes:
        stack: What the only stack of a decoder is called: "encoder", or "decoder" in early files.
        has_head: Whether there is a head of masked language modelling.
        has_pooler: Whether there is a pooler.
        is_tied: Whether the output layer is the token table.
        padding_rows: Rows of zeros after the vocabulary's own.
        residual_scale: What the residual of T5 was divided by.
    """

    stack: str = "encoder"
    has_head: bool = False
    has_pooler: bool = False
    is_tied: bool = True
    padding_rows: int = 0
    residual_scale: float = 1.0


_CLASSIFIER = Ignore("cls_projection.*", "the head of a task, on every token; Hugging Face's model of the family has none such")
_UNUSED_OUTPUT = Ignore("output_projection.*", "unused: the output layer is the token table")
_OLD_PROJECTION = (
    ("output_projection.w.weight", "output_projection.weight"),
    ("output_projection.w.bias", "output_projection.bias"),
)
_LAYER = "{layer}"


def head_prefix(family: str) -> str:
    """Return the beginning of the keys of a head of masked language modelling."""
    return "lm_head." if family in ("bert", "roberta", "longformer") else "output_projection."


def _attention(ours: str, names: tuple[str, ...], theirs: str, *, has_bias: bool, out: Operation | None = None) -> tuple[Rule, ...]:
    """Return the rules of query, key, value and output; `out` is for the output's weight."""
    rules: list[Rule] = []
    for name, their in zip(names, ("project_q", "project_k", "project_v", "attention_out"), strict=True):
        op = out if out is not None and their == "attention_out" else Copy()
        both = modules(f"{ours}.{name}", f"{theirs}.self_attention.{their}", op)
        rules += both if has_bias else both[:1]
    return tuple(rules)


def _post_norm(prefix: str, num_layers: int) -> tuple[Rule, ...]:
    """Return the rules of BERT's norms, each a sublayer later in ModelCenter."""
    theirs = "encoder.layers.{}.self_att.layernorm_before_attention"
    rules = [*modules(f"{prefix}embeddings.LayerNorm", theirs.format(0))]
    for layer in range(num_layers):
        is_last = layer + 1 == num_layers
        after = "encoder.output_layernorm" if is_last else theirs.format(layer + 1)
        rules += modules(f"{prefix}encoder.layer.{layer}.output.LayerNorm", after)
    return tuple(rules)


def _bert_like(name: str, head: str, norm: str, values: MappingABC[str, Any], layout: Layout) -> Mapping:
    """Return the table of BERT and its like; `head` and `norm` are their names in the head of masked language modelling."""
    prefix = f"{name}." if layout.has_head else ""
    ours, theirs = f"{prefix}encoder.layer.{_LAYER}", f"encoder.layers.{_LAYER}"
    names = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    rules = (
        Rule(f"{prefix}embeddings.word_embeddings.weight", "input_embedding.weight"),
        Rule(f"{prefix}embeddings.position_embeddings.weight", "position_embedding.weight"),
        Rule(f"{prefix}embeddings.token_type_embeddings.weight", "token_type_embedding.weight"),
        *_post_norm(prefix, values["num_layers"]),
        *_attention(ours, names, f"{theirs}.self_att", has_bias=True),
        *modules(f"{ours}.attention.output.LayerNorm", f"{theirs}.ffn.layernorm_before_ffn"),
        *modules(f"{ours}.intermediate.dense", f"{theirs}.ffn.ffn.w_in.w"),
        *modules(f"{ours}.output.dense", f"{theirs}.ffn.ffn.w_out"),
        *(modules(f"{prefix}pooler.dense", "pooler.dense") if layout.has_pooler else ()),
    )
    ignore: tuple[Ignore, ...] = (_CLASSIFIER,)
    if layout.has_head:
        dense = "cls.predictions.transform.dense" if name == "bert" else "lm_head.dense"
        rules += (*modules(dense, "lm_head.dense"), *modules(norm, "lm_head.layer_norm"))
        rules += (Rule(f"{head}.bias", "lm_head.decoder.bias"),)
        if layout.is_tied:
            ignore += (Ignore("lm_head.decoder.weight", "unused: the output layer is the token table"),)
        else:
            rules += modules(f"{head}.decoder", "lm_head.decoder")
    return Mapping(rules, ignore=ignore)


def _bert(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    return _bert_like("bert", "cls.predictions", "cls.predictions.transform.LayerNorm", values, layout)


def _roberta(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    return _bert_like("roberta", "lm_head", "lm_head.layer_norm", values, layout)


def _longformer(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    table = _bert_like("longformer", "lm_head", "lm_head.layer_norm", values, layout)
    ours = f"{'longformer.' if layout.has_head else ''}encoder.layer.{_LAYER}.attention.self"
    theirs = f"encoder.layers.{_LAYER}.self_att.self_attention"
    names = (("query", "q"), ("key", "k"), ("value", "v"))
    rules = (rule for name, letter in names for rule in modules(f"{ours}.{name}_global", f"{theirs}.project_{letter}_global"))
    return replace(table, rules=(*table.rules, *rules))


def _output(layout: Layout, op: Operation | None = None) -> tuple[tuple[Rule, ...], tuple[Ignore, ...]]:
    """Return the rules of a language model's output layer, and what is left out."""
    if layout.is_tied:
        return (), (_CLASSIFIER, _UNUSED_OUTPUT)
    return (Rule("lm_head.weight", "output_projection.weight", op or Copy()),), (_CLASSIFIER,)


def _gpt2(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    ours, theirs = f"transformer.h.{_LAYER}", f"{layout.stack}.layers.{_LAYER}"
    rows = DropRows(layout.padding_rows) if layout.padding_rows else Copy()
    qkv = tuple(f"{theirs}.self_att.self_attention.project_{letter}" for letter in "qkv")
    head, ignore = _output(layout, rows)
    rules = (
        Rule("transformer.wte.weight", "input_embedding.weight", rows),
        Rule("transformer.wpe.weight", "position_embedding.weight"),
        *modules(f"{ours}.ln_1", f"{theirs}.self_att.layernorm_before_attention"),
        Rule(f"{ours}.attn.c_attn.weight", tuple(f"{name}.weight" for name in qkv), Chain(Transpose(), Concat(3, dim=1))),
        Rule(f"{ours}.attn.c_attn.bias", tuple(f"{name}.bias" for name in qkv), Concat(3)),
        *modules(f"{ours}.attn.c_proj", f"{theirs}.self_att.self_attention.attention_out", Transpose()),
        *modules(f"{ours}.ln_2", f"{theirs}.ffn.layernorm_before_ffn"),
        *modules(f"{ours}.mlp.c_fc", f"{theirs}.ffn.ffn.w_in.w", Transpose()),
        *modules(f"{ours}.mlp.c_proj", f"{theirs}.ffn.ffn.w_out", Transpose()),
        *modules("transformer.ln_f", f"{layout.stack}.output_layernorm"),
    )
    return Mapping(rules + head, endings=_OLD_PROJECTION, ignore=ignore)


def _gptj(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    ours, theirs = f"transformer.h.{_LAYER}", f"{layout.stack}.layers.{_LAYER}"
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    rules = (
        Rule("transformer.wte.weight", "input_embedding.weight"),
        *modules(f"{ours}.ln_1", f"{theirs}.self_att.layernorm_before_attention"),
        *_attention(f"{ours}.attn", names, f"{theirs}.self_att", has_bias=False),
        *modules(f"{ours}.mlp.fc_in", f"{theirs}.ffn.ffn.w_in.w"),
        *modules(f"{ours}.mlp.fc_out", f"{theirs}.ffn.ffn.w_out"),
        *modules("transformer.ln_f", f"{layout.stack}.output_layernorm"),
        *modules("lm_head", "output_projection"),
    )
    twice = tuple(
        Tied(f"{block}.ffn.layernorm_before_ffn.{part}", f"{block}.self_att.layernorm_before_attention.{part}")
        for block in (f"{layout.stack}.layers.{layer}" for layer in range(values["num_layers"]))
        for part in ("weight", "bias")
    )
    return Mapping(rules, endings=_OLD_PROJECTION, ignore=(_CLASSIFIER,), tied=twice)


def _opt(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    ours, theirs = f"model.decoder.layers.{_LAYER}", f"{layout.stack}.layers.{_LAYER}"
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    rules = (
        Rule("model.decoder.embed_tokens.weight", "input_embedding.weight"),
        Rule("model.decoder.embed_positions.weight", "position_embedding.weight"),
        *modules(f"{ours}.self_attn_layer_norm", f"{theirs}.self_att.layernorm_before_attention"),
        *_attention(f"{ours}.self_attn", names, f"{theirs}.self_att", has_bias=True),
        *modules(f"{ours}.final_layer_norm", f"{theirs}.ffn.layernorm_before_ffn"),
        *modules(f"{ours}.fc1", f"{theirs}.ffn.ffn.w_in.w"),
        *modules(f"{ours}.fc2", f"{theirs}.ffn.ffn.w_out"),
        *modules("model.decoder.final_layer_norm", f"{layout.stack}.output_layernorm"),
    )
    return Mapping(rules, ignore=(_CLASSIFIER,))


def _llama(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    ours, theirs = f"model.layers.{_LAYER}", f"{layout.stack}.layers.{_LAYER}"
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    head, ignore = _output(layout)
    rules = (
        Rule("model.embed_tokens.weight", "input_embedding.weight"),
        Rule(f"{ours}.input_layernorm.weight", f"{theirs}.self_att.layernorm_before_attention.weight"),
        *_attention(f"{ours}.self_attn", names, f"{theirs}.self_att", has_bias=False),
        Rule(f"{ours}.post_attention_layernorm.weight", f"{theirs}.ffn.layernorm_before_ffn.weight"),
        Rule(f"{ours}.mlp.gate_proj.weight", f"{theirs}.ffn.ffn.w_in.w_0.weight"),
        Rule(f"{ours}.mlp.up_proj.weight", f"{theirs}.ffn.ffn.w_in.w_1.weight"),
        Rule(f"{ours}.mlp.down_proj.weight", f"{theirs}.ffn.ffn.w_out.weight"),
        Rule("model.norm.weight", f"{layout.stack}.output_layernorm.weight"),
    )
    return Mapping(rules + head, endings=_OLD_PROJECTION, ignore=ignore)


def _scaled(factor: float) -> Operation:
    return Copy() if factor == 1 else Scale(factor)


def _t5_stack(side: str, layout: Layout, *, is_gated: bool) -> tuple[Rule, ...]:
    """Return the rules of T5's encoder or decoder."""
    number = _LAYER if side == "encoder" else "{decoder_layer}"
    ours, theirs = f"{side}.block.{number}.layer", f"{side}.layers.{number}"
    kinds = [("0", "SelfAttention", "self_att"), *([("1", "EncDecAttention", "cross_att")] if side == "decoder" else [])]
    whole, half = _scaled(layout.residual_scale), _scaled(layout.residual_scale**0.5)
    rules: list[Rule] = []
    for index, name, their in kinds:
        rules += _attention(f"{ours}.{index}.{name}", tuple("qkvo"), f"{theirs}.{their}", has_bias=False, out=whole)
        rules.append(Rule(f"{ours}.{index}.layer_norm.weight", f"{theirs}.{their}.layernorm_before_attention.weight"))
    dense, inner = f"{ours}.{len(kinds)}.DenseReluDense", f"{theirs}.ffn.ffn"
    if is_gated:
        rules.append(Rule(f"{dense}.wi_0.weight", f"{inner}.w_in.w_0.weight"))
    rules.append(Rule(f"{dense}.{'wi_1' if is_gated else 'wi'}.weight", f"{inner}.w_in.{'w_1' if is_gated else 'w'}.weight", half))
    rules.append(Rule(f"{dense}.wo.weight", f"{inner}.w_out.weight", half))
    rules.append(Rule(f"{ours}.{len(kinds)}.layer_norm.weight", f"{theirs}.ffn.layernorm_before_ffn.weight"))
    rules.append(Rule(f"{side}.final_layer_norm.weight", f"{side}.output_layernorm.weight"))
    table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (*rules, Rule(table, f"position_bias_{side[:3]}.relative_attention_bias"))


def _t5(values: MappingABC[str, Any], layout: Layout) -> Mapping:
    is_gated = str(values["activation"]).startswith("gated_")
    head, ignore = _output(layout)
    rules = (
        Rule("shared.weight", "input_embedding.weight", _scaled(layout.residual_scale)),
        *_t5_stack("encoder", layout, is_gated=is_gated),
        *_t5_stack("decoder", layout, is_gated=is_gated),
    )
    return Mapping(rules + head, endings=_OLD_PROJECTION, ignore=ignore)


FAMILIES: dict[str, tuple[Callable[[MappingABC[str, Any], Layout], Mapping], Task]] = {
    "bert": (_bert, "masked_lm"),
    "roberta": (_roberta, "masked_lm"),
    "longformer": (_longformer, "masked_lm"),
    "gpt2": (_gpt2, "causal_lm"),
    "gptj": (_gptj, "causal_lm"),
    "llama": (_llama, "causal_lm"),
    "opt": (_opt, "causal_lm"),
    "t5": (_t5, "seq2seq_lm"),
    "mt5": (_t5, "seq2seq_lm"),
    "vit": (vit_mapping, "classification"),
}
"""The table of each family that ModelCenter had, and the task of a file with a head."""

KEPT: dict[str, Task] = {"cpm1": "causal_lm", "cpm2": "seq2seq_lm", "cpm3": "causal_lm", "glm-10b": "causal_lm"}
"""The families that have ModelCenter's names here too, because transformers has no such model, and the task of their files."""
