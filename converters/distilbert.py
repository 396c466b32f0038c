"""DistilBERT (Sanh et al., 2019): Hugging Face's names and fields beside ours. Tables only."""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.bert import OLD_ENDINGS
from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, choice, number, probability, size, token_id
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.names import ACTIVATIONS, SINGLE_LABEL

__all__ = ["DISTILBERT"]

_FIELDS = (
    Field("vocab_size", "vocab_size", 30522, size(2**26)),
    Field("hidden_size", "dim", 768, size(2**17)),
    Field("num_layers", "n_layers", 6, size(2**12)),
    Field("num_heads", "n_heads", 12, size(2**12)),
    Field("intermediate_size", "hidden_dim", 3072, size(2**20)),
    Field("activation", "activation", "gelu", choice(ACTIVATIONS)),
    Field("hidden_dropout", "dropout", 0.1, probability()),
    Field("attention_dropout", "attention_dropout", 0.1, probability()),
    Field("classifier_dropout", "seq_classif_dropout", 0.2, probability()),
    Field("qa_dropout", "qa_dropout", 0.1, probability()),
    Field("max_positions", "max_position_embeddings", 512, size(2**22)),
    Field("has_sinusoidal_positions", "sinusoidal_pos_embds", False, boolean),
    Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
    Field("pad_token_id", "pad_token_id", 0, token_id),
    Field("tie_word_embeddings", "tie_word_embeddings", True, boolean),
)

_OURS, _THEIRS = "encoder.layers.{layer}", "distilbert.transformer.layer.{layer}"
_RULES = (
    Rule("embeddings.token.weight", "distilbert.embeddings.word_embeddings.weight"),
    Rule("embeddings.position.weight", "distilbert.embeddings.position_embeddings.weight"),
    *modules("embeddings.norm", "distilbert.embeddings.LayerNorm"),
    *modules(f"{_OURS}.self_attention.sublayer.query", f"{_THEIRS}.attention.q_lin"),
    *modules(f"{_OURS}.self_attention.sublayer.key", f"{_THEIRS}.attention.k_lin"),
    *modules(f"{_OURS}.self_attention.sublayer.value", f"{_THEIRS}.attention.v_lin"),
    *modules(f"{_OURS}.self_attention.sublayer.output", f"{_THEIRS}.attention.out_lin"),
    *modules(f"{_OURS}.self_attention.norm", f"{_THEIRS}.sa_layer_norm"),
    *modules(f"{_OURS}.feed_forward.sublayer.up", f"{_THEIRS}.ffn.lin1"),
    *modules(f"{_OURS}.feed_forward.sublayer.down", f"{_THEIRS}.ffn.lin2"),
    *modules(f"{_OURS}.feed_forward.norm", f"{_THEIRS}.output_layer_norm"),
)
_LM_HEAD = (
    *modules("head.dense", "vocab_transform"),
    *modules("head.norm", "vocab_layer_norm"),
    Rule("head.bias", "vocab_projector.bias"),
)
_HEADS: dict[Task, tuple[Rule, ...]] = {
    "classification": (*modules("head.dense", "pre_classifier"), *modules("head.output", "classifier")),
    "multiple_choice": (*modules("head.dense", "pre_classifier"), *modules("head.output", "classifier")),
    "token_classification": modules("head.output", "classifier"),
    "question_answering": modules("head.output", "qa_outputs"),
}
_OTHER_HEADS = {
    "vocab_": ("masked_lm",),
    "pre_classifier.": ("classification", "multiple_choice"),
    "classifier.": ("classification", "token_classification", "multiple_choice"),
    "qa_outputs.": ("question_answering",),
}
_POSITION_IDS = Ignore("distilbert.embeddings.position_ids", "a constant buffer (0, 1, 2, ...) of old transformers")


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    rules = _RULES + _HEADS.get(task, ())
    ties: tuple[Tied, ...] = ()
    if task == "masked_lm":
        rules += _LM_HEAD if tied else (*_LM_HEAD, Rule("head.decoder.weight", "vocab_projector.weight"))
        ties = (Tied("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),) if tied else ()
    ignore = [_POSITION_IDS]
    ignore += [Ignore(f"{name}*", f"a head for {tasks[0]}") for name, tasks in _OTHER_HEADS.items() if task not in tasks]
    return Mapping(
        rules,
        Prefix("distilbert.", ("embeddings", "transformer"), written=task != "base"),
        OLD_ENDINGS,
        tuple(ignore),
        ties,
    )


DISTILBERT = FamilyConverter(
    model_type="distilbert",
    table=ConfigTable(_FIELDS, (Require("pruned_heads", ({}, None), "pruned heads are not built"), SINGLE_LABEL)),
    architectures={
        "base": "DistilBertModel",
        "masked_lm": "DistilBertForMaskedLM",
        "classification": "DistilBertForSequenceClassification",
        "token_classification": "DistilBertForTokenClassification",
        "question_answering": "DistilBertForQuestionAnswering",
        "multiple_choice": "DistilBertForMultipleChoice",
    },
    mappings=_mapping,
    sizes={
        "embeddings.token.weight": ("vocab_size", "hidden_size"),
        "embeddings.position.weight": ("max_positions", "hidden_size"),
        "encoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
        "head.bias": ("vocab_size",),
        "head.output.weight": ("num_labels", "hidden_size"),
    },
)
"""The converter of model_type "distilbert"."""
