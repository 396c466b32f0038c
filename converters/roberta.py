"""RoBERTa (Liu et al., 2019) and XLM-R (Conneau et al., 2019): Hugging Face's names and fields beside ours. Tables only.

The encoder's names are BERT's; heads, prefix and some defaults differ. XLM-R is RoBERTa with other class names.
"""

from collections.abc import Callable
from collections.abc import Mapping as MappingABC
from dataclasses import replace
from typing import Any

from modelzoo.converters.bert import ENCODER_REQUIREMENTS, ENCODER_SIZES, OLD_ENDINGS, encoder_fields, encoder_rules
from modelzoo.converters.config_table import ConfigTable, Field, size
from modelzoo.converters.family import FamilyConverter, Task
from modelzoo.converters.mapping import Ignore, Mapping, Prefix, Rule, Tied, modules

__all__ = ["ROBERTA", "XLM_ROBERTA", "roberta_fields", "roberta_mappings"]

_LM_HEAD = (*modules("head.dense", "lm_head.dense"), *modules("head.norm", "lm_head.layer_norm"))
_TIED_LM_HEAD = (*_LM_HEAD, Rule("head.bias", "lm_head.bias"))
# As in BERT: without the tie, transformers uses decoder.bias, leaves lm_head.bias unused, and writes both.
_UNTIED_LM_HEAD = (*_LM_HEAD, Rule("head.decoder.weight", "lm_head.decoder.weight"), Rule("head.bias", "lm_head.decoder.bias"))
_UNTIED_LM_NAMES = (Tied("lm_head.bias", "lm_head.decoder.bias", must_equal=False, written=True),)

_OTHER_HEADS = {
    "masked_lm": Ignore("lm_head.*", "the head of masked language modelling"),
    "classification": Ignore("classifier.*", "the head of a classifier"),
    "question_answering": Ignore("qa_outputs.*", "the head of question answering"),
}


def roberta_mappings(name: str, encoder: tuple[Rule, ...]) -> Callable[[Task, bool, MappingABC[str, Any]], Mapping]:
    """Return the tables of a family with RoBERTa's heads.

    Args:
        name: Hugging Face's name of the backbone, without a dot.
        encoder: The rules of embeddings and layers.
    """
    tied_names = (
        Tied("lm_head.decoder.weight", f"{name}.embeddings.word_embeddings.weight"),
        Tied("lm_head.decoder.bias", "lm_head.bias"),
    )

    def mapping(task: Task, tied: bool, values: MappingABC[str, Any]) -> Mapping:
        rules = encoder
        ignore = [Ignore(f"{name}.embeddings.position_ids", "a constant buffer (0, 1, 2, ...) of old transformers")]
        ties: tuple[Tied, ...] = ()
        if task in ("base", "multiple_choice"):
            rules += modules("pooler.dense", f"{name}.pooler.dense")
        else:
            ignore.append(Ignore(f"{name}.pooler.*", "transformers has no pooler for this task"))
        if task == "masked_lm":
            rules += _TIED_LM_HEAD if tied else _UNTIED_LM_HEAD
            ties = tied_names if tied else _UNTIED_LM_NAMES
        elif task == "classification":
            rules += (*modules("head.dense", "classifier.dense"), *modules("head.output", "classifier.out_proj"))
        elif task in ("token_classification", "multiple_choice"):
            rules += modules("head.output", "classifier")
        elif task == "question_answering":
            rules += modules("head.output", "qa_outputs")
        own = "classification" if task in ("token_classification", "multiple_choice") else task
        ignore += [entry for other, entry in _OTHER_HEADS.items() if other != own]
        prefix = Prefix(f"{name}.", ("embeddings", "encoder", "pooler"), written=task != "base")
        return Mapping(rules, prefix, OLD_ENDINGS, tuple(ignore), ties)

    return mapping


def roberta_fields(vocab_size: int) -> tuple[Field, ...]:
    """Return BERT's fields; the padding id is needed here, because positions are counted from it."""
    fields = encoder_fields(vocab_size=vocab_size, pad_token_id=1)
    return tuple(replace(field, check=_padding_id) if field.ours == "pad_token_id" else field for field in fields)


def _padding_id(value: object) -> str | None:
    fine = value == 0 or size(2**26)(value) is None
    return None if fine and not isinstance(value, bool) else "a token id (a whole number from 0): positions are counted from it"


ROBERTA = FamilyConverter(
    model_type="roberta",
    table=ConfigTable(roberta_fields(50265), ENCODER_REQUIREMENTS),
    architectures={
        "base": "RobertaModel",
        "masked_lm": "RobertaForMaskedLM",
        "classification": "RobertaForSequenceClassification",
        "token_classification": "RobertaForTokenClassification",
        "question_answering": "RobertaForQuestionAnswering",
        "multiple_choice": "RobertaForMultipleChoice",
    },
    mappings=roberta_mappings("roberta", encoder_rules("roberta.")),
    sizes=ENCODER_SIZES,
)
"""The converter of model_type "roberta"."""

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    table=ConfigTable(roberta_fields(30522), ENCODER_REQUIREMENTS),
    architectures={task: f"XLM{name}" for task, name in ROBERTA.architectures.items()},
)
"""The converter of model_type "xlm-roberta"."""
