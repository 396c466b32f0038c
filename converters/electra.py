"""ELECTRA (Clark et al., 2020): Hugging Face's names and fields beside ours. Tables only."""

from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.bert import ENCODER_REQUIREMENTS, ENCODER_SIZES, OLD_ENDINGS, encoder_fields, encoder_rules
from modelzoo.converters.config_table import ConfigTable, Field, Require, probability, size
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules

__all__ = ["ELECTRA"]

_DEFAULTS = {"hidden_size": 256, "num_heads": 4, "intermediate_size": 1024}
_FIELDS = (
    *(
        replace(field, default=_DEFAULTS.get(field.ours, field.default))
        for field in encoder_fields(vocab_size=30522, pad_token_id=0)
    ),
    Field("embedding_size", "embedding_size", 128, size(2**17)),
    Field("summary_dropout", "summary_last_dropout", 0.1, probability()),
)

_ONE_SUMMARY = "a choice is scored by gelu(W x) of its first token alone"
_SUMMARY = (
    Require("summary_type", ("first",), _ONE_SUMMARY, tasks=("multiple_choice",)),
    Require("summary_use_proj", (True,), _ONE_SUMMARY, tasks=("multiple_choice",)),
    Require("summary_activation", ("gelu",), _ONE_SUMMARY, tasks=("multiple_choice",)),
)

_RULES = (
    *encoder_rules("electra."),
    Rule("embeddings.projection.weight", "electra.embeddings_project.weight", is_optional=True),
    Rule("embeddings.projection.bias", "electra.embeddings_project.bias", is_optional=True),
)
_HEADS: dict[Task, tuple[Rule, ...]] = {
    "masked_lm": (
        *modules("head.dense", "generator_predictions.dense"),
        *modules("head.norm", "generator_predictions.LayerNorm"),
        Rule("head.bias", "generator_lm_head.bias"),
    ),
    "classification": (*modules("head.dense", "classifier.dense"), *modules("head.output", "classifier.out_proj")),
    "multiple_choice": (*modules("head.dense", "sequence_summary.summary"), *modules("head.output", "classifier")),
    "token_classification": modules("head.output", "classifier"),
    "question_answering": modules("head.output", "qa_outputs"),
}
_OTHER_HEADS = {
    "generator_": ("masked_lm",),
    "classifier.": ("classification", "token_classification", "multiple_choice"),
    "sequence_summary.": ("multiple_choice",),
    "qa_outputs.": ("question_answering",),
}
_IGNORED = (
    Ignore("electra.embeddings.position_ids", "a constant buffer (0, 1, 2, ...) of old transformers"),
    Ignore("discriminator_predictions.*", "telling replaced tokens from original ones is not a task here"),
)


def _mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
    rules = _RULES + _HEADS.get(task, ())
    ties: tuple[Tied, ...] = ()
    if task == "masked_lm" and tied:
        ties = (Tied("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),)
    elif task == "masked_lm":
        rules += (Rule("head.decoder.weight", "generator_lm_head.weight"),)
    others = tuple(Ignore(f"{name}*", f"a head for {tasks[0]}") for name, tasks in _OTHER_HEADS.items() if task not in tasks)
    prefix = Prefix("electra.", ("embeddings", "embeddings_project", "encoder"), written=task != "base")
    return Mapping(rules, prefix, OLD_ENDINGS, _IGNORED + others, ties)


ELECTRA = FamilyConverter(
    model_type="electra",
    table=ConfigTable(_FIELDS, (*ENCODER_REQUIREMENTS, *_SUMMARY)),
    architectures={
        "base": "ElectraModel",
        "masked_lm": "ElectraForMaskedLM",
        "classification": "ElectraForSequenceClassification",
        "token_classification": "ElectraForTokenClassification",
        "question_answering": "ElectraForQuestionAnswering",
        "multiple_choice": "ElectraForMultipleChoice",
    },
    mappings=_mapping,
    sizes=ENCODER_SIZES
    | {
        "embeddings.token.weight": ("vocab_size", "embedding_size"),
        "embeddings.position.weight": ("max_positions", "embedding_size"),
        "embeddings.segment.weight": ("type_vocab_size", "embedding_size"),
        "embeddings.norm.weight": ("embedding_size",),
        "head.decoder.weight": ("vocab_size", "embedding_size"),
    },
)
"""The converter of model_type "electra"."""
