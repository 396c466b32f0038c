"""A model zoo and fine-tuning hub: exact, bigger than memory, one command from a laptop to a cluster.

Names are imported when they are first used, so that `import modelzoo` and the command start at once.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelzoo.data import load_tokenizer as load_tokenizer
    from modelzoo.generation import generate as generate
    from modelzoo.models.auto import from_pretrained as from_pretrained
    from modelzoo.models.bert import Bert as Bert
    from modelzoo.models.bert import BertConfig as BertConfig
    from modelzoo.models.cpm1 import CPM1 as CPM1
    from modelzoo.models.cpm1 import CPM1Config as CPM1Config
    from modelzoo.models.cpm2 import CPM2 as CPM2
    from modelzoo.models.cpm2 import CPM2Config as CPM2Config
    from modelzoo.models.cpm3 import CPM3 as CPM3
    from modelzoo.models.cpm3 import CPM3Config as CPM3Config
    from modelzoo.models.cpm_ant import CpmAnt as CpmAnt
    from modelzoo.models.cpm_ant import CpmAntConfig as CpmAntConfig
    from modelzoo.models.cpm_bee import CpmBee as CpmBee
    from modelzoo.models.cpm_bee import CpmBeeConfig as CpmBeeConfig
    from modelzoo.models.dinov2 import Dinov2 as Dinov2
    from modelzoo.models.dinov2 import Dinov2Config as Dinov2Config
    from modelzoo.models.distilbert import DistilBert as DistilBert
    from modelzoo.models.distilbert import DistilBertConfig as DistilBertConfig
    from modelzoo.models.electra import Electra as Electra
    from modelzoo.models.electra import ElectraConfig as ElectraConfig
    from modelzoo.models.glm_10b import GLM10B as GLM10B
    from modelzoo.models.glm_10b import GLM10BConfig as GLM10BConfig
    from modelzoo.models.gpt2 import GPT2 as GPT2
    from modelzoo.models.gpt2 import GPT2Config as GPT2Config
    from modelzoo.models.gptj import GPTJ as GPTJ
    from modelzoo.models.gptj import GPTJConfig as GPTJConfig
    from modelzoo.models.llama import Llama as Llama
    from modelzoo.models.llama import LlamaConfig as LlamaConfig
    from modelzoo.models.longformer import Longformer as Longformer
    from modelzoo.models.longformer import LongformerConfig as LongformerConfig
    from modelzoo.models.minicpm import MiniCPM as MiniCPM
    from modelzoo.models.minicpm import MiniCPMConfig as MiniCPMConfig
    from modelzoo.models.mistral import Mistral as Mistral
    from modelzoo.models.mistral import MistralConfig as MistralConfig
    from modelzoo.models.mixtral import Mixtral as Mixtral
    from modelzoo.models.mixtral import MixtralConfig as MixtralConfig
    from modelzoo.models.mixtral import Qwen2Moe as Qwen2Moe
    from modelzoo.models.mixtral import Qwen2MoeConfig as Qwen2MoeConfig
    from modelzoo.models.modernbert import ModernBert as ModernBert
    from modelzoo.models.modernbert import ModernBertConfig as ModernBertConfig
    from modelzoo.models.mt5 import MT5 as MT5
    from modelzoo.models.opt import OPT as OPT
    from modelzoo.models.opt import OPTConfig as OPTConfig
    from modelzoo.models.qwen2 import Qwen2 as Qwen2
    from modelzoo.models.qwen2 import Qwen2Config as Qwen2Config
    from modelzoo.models.qwen3 import Qwen3 as Qwen3
    from modelzoo.models.qwen3 import Qwen3Config as Qwen3Config
    from modelzoo.models.roberta import Roberta as Roberta
    from modelzoo.models.roberta import RobertaConfig as RobertaConfig
    from modelzoo.models.roberta import XlmRoberta as XlmRoberta
    from modelzoo.models.roberta import XlmRobertaConfig as XlmRobertaConfig
    from modelzoo.models.t5 import T5 as T5
    from modelzoo.models.t5_config import MT5Config as MT5Config
    from modelzoo.models.t5_config import T5Config as T5Config
    from modelzoo.models.vit import ViT as ViT
    from modelzoo.models.vit import ViTConfig as ViTConfig
    from modelzoo.run import Run as Run
    from modelzoo.run import plan_training as plan_training
    from modelzoo.run import resume as resume
    from modelzoo.run import settings as settings
    from modelzoo.run import train as train
    from modelzoo.training import evaluate as evaluate
    from modelzoo.training import predict as predict
    from modelzoo.verification import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "Bert": "modelzoo.models.bert",
    "BertConfig": "modelzoo.models.bert",
    "CPM1": "modelzoo.models.cpm1",
    "CPM1Config": "modelzoo.models.cpm1",
    "CPM2": "modelzoo.models.cpm2",
    "CPM2Config": "modelzoo.models.cpm2",
    "CPM3": "modelzoo.models.cpm3",
    "CPM3Config": "modelzoo.models.cpm3",
    "CpmAnt": "modelzoo.models.cpm_ant",
    "CpmAntConfig": "modelzoo.models.cpm_ant",
    "CpmBee": "modelzoo.models.cpm_bee",
    "CpmBeeConfig": "modelzoo.models.cpm_bee",
    "Dinov2": "modelzoo.models.dinov2",
    "Dinov2Config": "modelzoo.models.dinov2",
    "DistilBert": "modelzoo.models.distilbert",
    "DistilBertConfig": "modelzoo.models.distilbert",
    "Electra": "modelzoo.models.electra",
    "ElectraConfig": "modelzoo.models.electra",
    "GLM10B": "modelzoo.models.glm_10b",
    "GLM10BConfig": "modelzoo.models.glm_10b",
    "GPT2": "modelzoo.models.gpt2",
    "GPT2Config": "modelzoo.models.gpt2",
    "GPTJ": "modelzoo.models.gptj",
    "GPTJConfig": "modelzoo.models.gptj",
    "Llama": "modelzoo.models.llama",
    "LlamaConfig": "modelzoo.models.llama",
    "Longformer": "modelzoo.models.longformer",
    "LongformerConfig": "modelzoo.models.longformer",
    "MT5": "modelzoo.models.mt5",
    "MT5Config": "modelzoo.models.t5_config",
    "MiniCPM": "modelzoo.models.minicpm",
    "MiniCPMConfig": "modelzoo.models.minicpm",
    "Mistral": "modelzoo.models.mistral",
    "MistralConfig": "modelzoo.models.mistral",
    "Mixtral": "modelzoo.models.mixtral",
    "MixtralConfig": "modelzoo.models.mixtral",
    "ModernBert": "modelzoo.models.modernbert",
    "ModernBertConfig": "modelzoo.models.modernbert",
    "OPT": "modelzoo.models.opt",
    "OPTConfig": "modelzoo.models.opt",
    "Qwen2": "modelzoo.models.qwen2",
    "Qwen2Config": "modelzoo.models.qwen2",
    "Qwen2Moe": "modelzoo.models.mixtral",
    "Qwen2MoeConfig": "modelzoo.models.mixtral",
    "Qwen3": "modelzoo.models.qwen3",
    "Qwen3Config": "modelzoo.models.qwen3",
    "Roberta": "modelzoo.models.roberta",
    "RobertaConfig": "modelzoo.models.roberta",
    "Run": "modelzoo.run",
    "T5": "modelzoo.models.t5",
    "T5Config": "modelzoo.models.t5_config",
    "ViT": "modelzoo.models.vit",
    "ViTConfig": "modelzoo.models.vit",
    "XlmRoberta": "modelzoo.models.roberta",
    "XlmRobertaConfig": "modelzoo.models.roberta",
    "evaluate": "modelzoo.training",
    "from_pretrained": "modelzoo.models.auto",
    "generate": "modelzoo.generation",
    "load_tokenizer": "modelzoo.data",
    "plan_training": "modelzoo.run",
    "predict": "modelzoo.training",
    "resume": "modelzoo.run",
    "settings": "modelzoo.run",
    "train": "modelzoo.run",
    "verify": "modelzoo.verification",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604, RUF100  # the names of _HOMES, which is the one list of them


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'modelzoo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_HOMES])
