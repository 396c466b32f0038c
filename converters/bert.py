"""BERT (Devlin et al., 2018): Hugging Face's names and fields beside ours. Tables only."""

from collections.abc import Mapping as MappingABC
from typing import Any

from modelzoo.converters.config_table import ConfigTable, Field, Require, boolean, choice, number, probability, size, token_id
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.names import ACTIVATIONS, SINGLE_LABEL

__all__ = ["BERT", "ENCODER_REQUIREMENTS", "ENCODER_SIZES", "OLD_ENDINGS", "encoder_fields", "encoder_rules"]

# TensorFlow's names for the two halves of a LayerNorm, in files from before 2020. Only as whole components.
OLD_ENDINGS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))

ENCODER_REQUIREMENTS = (
    Require("position_embedding_type", ("absolute", None), "relative positions of BERT are not built"),
    Require("is_decoder", (False, None), "a decoder with BERT's layers is not built"),
    Require("add_cross_attention", (False, None), "cross attention in BERT's layers is not built"),
    Require("is_encoder_decoder", (False, None), "an encoder-decoder of BERTs is not built"),
    Require("pruned_heads", ({}, None), "pruned heads are not built"),
    SINGLE_LABEL,
)

ENCODER_SIZES = {
    "embeddings.token.weight": ("vocab_size", "hidden_size"),
    "embeddings.position.weight": ("max_positions", "hidden_size"),
    "embeddings.segment.weight": ("type_vocab_size", "hidden_size"),
    "embeddings.norm.weight": ("hidden_size",),
    "encoder.layers.{layer}.self_attention.sublayer.query.weight": ("hidden_size", "hidden_size"),
    "encoder.layers.{layer}.feed_forward.sublayer.up.weight": ("intermediate_size", "hidden_size"),
    "pooler.dense.weight": ("hidden_size", "hidden_size"),
    "head.bias": ("vocab_size",),
    "head.decoder.weight": ("vocab_size", "hidden_size"),
    "head.output.weight": ("num_labels", "hidden_size"),
}


def encoder_fields(*, vocab_size: int, pad_token_id: int) -> tuple[Field, ...]:
    """Return the config fields that BERT and RoBERTa share; the defaults are those of transformers 5.24."""
    return (
        Field("vocab_size", "vocab_size", vocab_size, size(2**26)),
        Field("hidden_size", "hidden_size", 768, size(2**17)),
        Field("num_layers", "num_hidden_layers", 12, size(2**12)),
        Field("num_heads", "num_attention_heads", 12, size(2**12)),
        Field("intermediate_size", "intermediate_size", 3072, size(2**20)),
        Field("activation", "hidden_act", "gelu", choice(ACTIVATIONS)),
        Field("hidden_dropout", "hidden_dropout_prob", 0.1, probability()),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.1, probability()),
        Field("classifier_dropout", "classifier_dropout", None, probability(optional=True)),
        Field("max_positions", "max_position_embeddings", 512, size(2**22)),
        Field("type_vocab_size", "type_vocab_size", 2, size(2**16)),
        Field("norm_eps", "layer_norm_eps", 1e-12, number(0, 1)),
        Field("initializer_range", "initializer_range", 0.02, number(0, 100)),
        Field("pad_token_id", "pad_token_id", pad_token_id, token_id),
        Field("tie_word_embeddings", "tie_word_embeddings", True, boolean),
    )


def encoder_rules(prefix: str) -> tuple[Rule, ...]:
    """Return the rules of embeddings and layers; `prefix` is Hugging Face's name of the backbone with its dot."""
    ours, theirs = "encoder.layers.{layer}", f"{prefix}encoder.layer.{{layer}}"
    return (
        Rule("embeddings.token.weight", f"{prefix}embeddings.word_embeddings.weight"),
        Rule("embeddings.position.weight", f"{prefix}embeddings.position_embeddings.weight"),
        Rule("embeddings.segment.weight", f"{prefix}embeddings.token_type_embeddings.weight"),
        *modules("embeddings.norm", f"{prefix}embeddings.LayerNorm"),
        *modules(f"{ours}.self_attention.sublayer.query", f"{theirs}.attention.self.query"),
        *modules(f"{ours}.self_attention.sublayer.key", f"{theirs}.attention.self.key"),
        *modules(f"{ours}.self_attention.sublayer.value", f"{theirs}.attention.self.value"),
        *modules(f"{ours}.self_attention.sublayer.output", f"{theirs}.attention.output.dense"),
        *modules(f"{ours}.self_attention.norm", f"{theirs}.attention.output.LayerNorm"),
        *modules(f"{ours}.feed_forward.sublayer.up", f"{theirs}.intermediate.dense"),
        *modules(f"{ours}.feed_forward.sublayer.down", f"{theirs}.output.dense"),
        *modules(f"{ours}.feed_forward.norm", f"{theirs}.output.LayerNorm"),
    )


_POOLER = modules("pooler.dense", "bert.pooler.dense")
_LM_HEAD = (
    *modules("head.dense", "cls.predictions.transform.dense"),
    *modules("head.norm", "cls.predictions.transform.LayerNorm"),
)
_TIED_LM_HEAD = (*_LM_HEAD, Rule("head.bias", "cls.predictions.bias"))
_TIED_LM_NAMES = (
    Tied("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    Tied("cls.predictions.decoder.bias", "cls.predictions.bias"),
)
# Without the tie, transformers' forward uses decoder.bias and leaves cls.predictions.bias unused, and writes both. Files from
# before version 5 have cls.predictions.bias alone.
_UNTIED_LM_HEAD = (
    *_LM_HEAD,
    Rule("head.decoder.weight", "cls.predictions.decoder.weight"),
    Rule("head.bias", "cls.predictions.decoder.bias"),
)
_UNTIED_LM_NAMES = (Tied("cls.predictions.bias", "cls.predictions.decoder.bias", must_equal=False, written=True),)

_POSITION_IDS = Ignore("bert.embeddings.position_ids", "a constant buffer (0, 1, 2, ...) of old transformers")
_NEXT_SENTENCE = Ignore("cls.seq_relationship.*", "next sentence prediction is not a task here")
_NO_POOLER = Ignore("bert.pooler.*", "transformers has no pooler for this task")
_OTHER_HEADS = {
    "masked_lm": Ignore("cls.*", "the head of masked language modelling"),
    "classification": Ignore("classifier.*", "the head of a classifier"),
    "question_answering": Ignore("qa_outputs.*", "the head of question answering"),
}


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    rules = encoder_rules("bert.")
    ignore = [_POSITION_IDS, _NEXT_SENTENCE]
    ties: tuple[Tied, ...] = ()
    if task in ("base", "classification", "multiple_choice"):
        rules += _POOLER
    else:
        ignore.append(_NO_POOLER)
    if task == "masked_lm":
        rules += _TIED_LM_HEAD if tied else _UNTIED_LM_HEAD
        ties = _TIED_LM_NAMES if tied else _UNTIED_LM_NAMES
    elif task in ("classification", "token_classification", "multiple_choice"):
        rules += modules("head.output", "classifier")
    elif task == "question_answering":
        rules += modules("head.output", "qa_outputs")
    own = "classification" if task in ("token_classification", "multiple_choice") else task
    ignore += [entry for name, entry in _OTHER_HEADS.items() if name != own]
    prefix = Prefix("bert.", ("embeddings", "encoder", "pooler"), written=task != "base")
    return Mapping(rules, prefix, OLD_ENDINGS, tuple(ignore), ties)


BERT = FamilyConverter(
    model_type="bert",
    table=ConfigTable(encoder_fields(vocab_size=30522, pad_token_id=0), ENCODER_REQUIREMENTS),
    architectures={
        "base": "BertModel",
        "masked_lm": "BertForMaskedLM",
        "classification": "BertForSequenceClassification",
        "token_classification": "BertForTokenClassification",
        "question_answering": "BertForQuestionAnswering",
        "multiple_choice": "BertForMultipleChoice",
    },
    also={"BertForPreTraining": "masked_lm"},
    mappings=_mapping,
    sizes=ENCODER_SIZES,
)
"""The converter of model_type "bert"."""
