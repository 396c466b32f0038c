"""The families that can be read and written, by Hugging Face's model_type."""

from modelzoo.converters.bert import BERT
from modelzoo.converters.cpm1 import CPM1
from modelzoo.converters.cpm2 import CPM2
from modelzoo.converters.cpm3 import CPM3
from modelzoo.converters.cpm_ant import CPM_ANT
from modelzoo.converters.cpm_bee import CPM_BEE
from modelzoo.converters.dinov2 import DINOV2
from modelzoo.converters.distilbert import DISTILBERT
from modelzoo.converters.electra import ELECTRA
from modelzoo.converters.family import FamilyConverter
from modelzoo.converters.glm_10b import GLM_10B
from modelzoo.converters.gpt2 import GPT2
from modelzoo.converters.gptj import GPTJ
from modelzoo.converters.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from modelzoo.converters.longformer import LONGFORMER
from modelzoo.converters.minicpm import MINICPM
from modelzoo.converters.mixtral import MIXTRAL, QWEN2_MOE
from modelzoo.converters.modernbert import MODERNBERT
from modelzoo.converters.opt import OPT
from modelzoo.converters.roberta import ROBERTA, XLM_ROBERTA
from modelzoo.converters.t5 import MT5, T5
from modelzoo.converters.vit import VIT
from modelzoo.errors import ConfigError, closest

__all__ = ["converter_for", "known_model_types"]

_CONVERTERS = {
    converter.model_type: converter
    for converter in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        GPT2,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        T5,
        MT5,
        OPT,
        DISTILBERT,
        GPTJ,
        CPM_ANT,
        ELECTRA,
        CPM1,
        CPM2,
        MODERNBERT,
        MIXTRAL,
        QWEN2_MOE,
        CPM3,
        VIT,
        DINOV2,
        CPM_BEE,
        MINICPM,
        GLM_10B,
        LONGFORMER,
    )
}


def known_model_types() -> tuple[str, ...]:
    """Return the model types that `converter_for` takes."""
    return tuple(_CONVERTERS)


def converter_for(model_type: object) -> FamilyConverter:
    """Return the converter of a family.

    Args:
        model_type: The field of that name in a config.json.

    Raises:
        ConfigError: It is missing (None), not a string, or not a family that is built.
    """
    known = ", ".join(_CONVERTERS)
    if model_type is None:
        raise ConfigError(
            f"config.json: model_type: expected one of {known}, found nothing. Add the field, or load with the family's own class "
            "(modelzoo.Bert.from_pretrained, ...)"
        )
    if not isinstance(model_type, str) or model_type not in _CONVERTERS:
        near = closest(model_type, _CONVERTERS) if isinstance(model_type, str) else []
        hint = f". Did you mean {near[0]}?" if near else ". It is not built here"
        raise ConfigError(f"config.json: model_type: expected one of {known}, found {model_type!r:.80}{hint}")
    return _CONVERTERS[model_type]
