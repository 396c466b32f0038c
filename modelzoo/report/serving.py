"""Which programs take a checkpoint, by the class that its config.json names: one list for `info`, `export` and the model card.

Source: vLLM's registry (vllm/model_executor/models/registry.py, as of January 2026), llama.cpp's convert_hf_to_gguf.py, and what
transformers 5 has. A class that is in no list may still be served by a later version.
"""

__all__ = ["SERVERS", "served_by", "serving_text"]

SERVERS = ("transformers", "vLLM", "llama.cpp")

_OURS_ALONE = ("CPM1", "CPM2", "CPM3", "CpmBee", "GLM10B", "MiniCPM")
"""How the names of classes begin that transformers does not hold."""

_VLLM: dict[str, str] = dict.fromkeys(
    (
        "GPT2LMHeadModel",
        "GPTJForCausalLM",
        "LlamaForCausalLM",
        "MiniCPMForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "OPTForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
    ),
    "text generation",
)
_VLLM |= dict.fromkeys(("BertModel", "RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "ModernBertModel"), "embeddings")
_VLLM |= {"LlamaModel": "embeddings", "MistralModel": "embeddings", "Qwen2Model": "embeddings"}
_VLLM |= dict.fromkeys(
    (
        "BertForSequenceClassification",
        "GPT2ForSequenceClassification",
        "ModernBertForSequenceClassification",
        "RobertaForSequenceClassification",
        "XLMRobertaForSequenceClassification",
    ),
    "classification and scoring of pairs",
)
_VLLM |= dict.fromkeys(("BertForTokenClassification", "ModernBertForTokenClassification"), "token classification")

_LLAMA_CPP: dict[str, str] = dict.fromkeys(
    (
        "GPT2LMHeadModel",
        "LlamaForCausalLM",
        "MiniCPMForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "T5ForConditionalGeneration",
        "MT5ForConditionalGeneration",
    ),
    "text generation",
)
_LLAMA_CPP |= {
    "BertModel": "embeddings",
    "BertForMaskedLM": "embeddings",
    "BertForSequenceClassification": "reranking",
    "RobertaModel": "embeddings",
    "RobertaForSequenceClassification": "reranking",
    "XLMRobertaModel": "embeddings",
    "XLMRobertaForSequenceClassification": "reranking",
    "T5EncoderModel": "embeddings",
}


def served_by(architecture: str) -> dict[str, str | None]:
    """Return what each program of `SERVERS` does with a class's checkpoints; None for one that does not take them.

    Args:
        architecture: The class in `architectures` of config.json.
    """
    return {
        "transformers": None if architecture.startswith(_OURS_ALONE) or not architecture else architecture,
        "vLLM": _VLLM.get(architecture),
        "llama.cpp": _LLAMA_CPP.get(architecture),
    }


def serving_text(architecture: str) -> str:
    """Return it as one line."""
    parts = [f"{server}: {use or 'no'}" for server, use in served_by(architecture).items()]
    return " · ".join(parts)
