"""GPT-J (Wang and Komatsuzaki, 2021): Hugging Face's names and fields beside ours. Tables only."""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, size
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.gpt_fields import CAUSAL_MASKS, gpt_fields
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, modules
from modelzoo.converters.names import SINGLE_LABEL

__all__ = ["GPTJ"]

_FIELDS = (
    *gpt_fields(
        vocab_size=50400,
        max_positions=Field("max_positions", "n_positions", 2048, size(2**26)),
        hidden_size=4096,
        num_layers=28,
        num_heads=16,
        dropout=0.0,
    ),
    Field("rotary_size", "rotary_dim", 64, size(2**12)),
    Field("tie_word_embeddings", "tie_word_embeddings", False, boolean),
)

_REQUIRE = (
    Require("tie_word_embeddings", (False,), "a head that is the token embedding and has a bias is not built"),
    SINGLE_LABEL,
)

_OURS, _THEIRS = "decoder.layers.{layer}", "transformer.h.{layer}"
_RULES = (
    Rule("embeddings.token.weight", "transformer.wte.weight"),
    Rule(f"{_OURS}.attention.query.weight", f"{_THEIRS}.attn.q_proj.weight"),
    Rule(f"{_OURS}.attention.key.weight", f"{_THEIRS}.attn.k_proj.weight"),
    Rule(f"{_OURS}.attention.value.weight", f"{_THEIRS}.attn.v_proj.weight"),
    Rule(f"{_OURS}.attention.output.weight", f"{_THEIRS}.attn.out_proj.weight"),
    *modules(f"{_OURS}.feed_forward.up", f"{_THEIRS}.mlp.fc_in"),
    *modules(f"{_OURS}.feed_forward.down", f"{_THEIRS}.mlp.fc_out"),
    *modules(f"{_OURS}.norm", f"{_THEIRS}.ln_1"),
    *modules("decoder.norm", "transformer.ln_f"),
)
_HEADS: dict[Task, tuple[Rule, ...]] = {
    "causal_lm": modules("head", "lm_head"),
    "classification": (Rule("head.weight", "score.weight"),),
    "question_answering": modules("head.output", "qa_outputs"),
}


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    others = {"lm_head": "causal_lm", "score": "classification", "qa_outputs": "question_answering"}
    return Mapping(
        _RULES + _HEADS.get(task, ()),
        Prefix("transformer.", ("wte", "h", "ln_f"), written=task != "base"),
        ignore=(*CAUSAL_MASKS, *(Ignore(f"{name}.*", "the head of another task") for name, own in others.items() if own != task)),
    )


GPTJ = FamilyConverter(
    model_type="gptj",
    table=ConfigTable(_FIELDS, _REQUIRE),
    architectures={
        "base": "GPTJModel",
        "causal_lm": "GPTJForCausalLM",
        "classification": "GPTJForSequenceClassification",
        "question_answering": "GPTJForQuestionAnswering",
    },
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "decoder.layers.{layer}.feed_forward.up.weight": ("intermediate_size", "hidden_size"),
    },
)
"""The converter of model_type "gptj"."""
