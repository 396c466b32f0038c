"""Published configs, in the words of their own time, give models of the published numbers of parameters; nothing is allocated."""

import pytest
import torch

from modelzoo.converters import converter_for
from modelzoo.layers import skip_initialization
from modelzoo.models.auto import model_class

PUBLISHED = {
    "opt-125m": (
        {
            "model_type": "opt", "activation_dropout": 0.0, "do_layer_norm_before": True, "ffn_dim": 3072, "hidden_size": 768,
            "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
            "vocab_size": 50272, "word_embed_proj_dim": 768, "_remove_final_layer_norm": False, "prefix": "</s>",
        },
        125_239_296,
    ),
    "opt-350m": (
        {
            "model_type": "opt", "activation_dropout": 0.0, "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024,
            "max_position_embeddings": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "pad_token_id": 1,
            "vocab_size": 50272, "word_embed_proj_dim": 512, "_remove_final_layer_norm": False, "prefix": "</s>",
        },
        331_196_416,
    ),
    "gpt-j-6b": (
        {
            "model_type": "gptj", "activation_function": "gelu_new", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28,
            "n_positions": 2048, "rotary": True, "rotary_dim": 64, "scale_attn_weights": True, "gradient_checkpointing": False,
            "tie_word_embeddings": False, "vocab_size": 50400,
        },
        6_050_882_784,
    ),
    "Mixtral-8x7B-v0.1": (
        {
            "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
            "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "num_local_experts": 8, "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
        },
        46_702_792_704,
    ),
    "Qwen1.5-MoE-A2.7B": (
        {
            "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
            "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
            "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
            "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "decoder_sparse_step": 1,
            "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
        },
        14_315_784_192,
    ),
    "MiniCPM-2B": (
        {
            "model_type": "minicpm", "hidden_size": 2304, "initializer_range": 0.1, "intermediate_size": 5760,
            "max_position_embeddings": 4096, "num_attention_heads": 36, "num_hidden_layers": 40, "num_key_value_heads": 36,
            "rms_norm_eps": 1e-05, "rope_scaling": None, "vocab_size": 122753, "scale_emb": 12, "dim_model_base": 256,
            "scale_depth": 1.4,
        },
        2_724_880_896,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_number_of_parameters(name):
    source, count = PUBLISHED[name]
    converter, kind = converter_for(source["model_type"]), model_class(source["model_type"])
    config = kind.config_class(**converter.read_config(source, "causal_lm"), source=source)
    with torch.device("meta"), skip_initialization():
        model = kind(config, "causal_lm")
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    mapping = converter.weights("causal_lm", tied=config.tie_word_embeddings, values=config.values())
    assert mapping.plan(dict(model.named_parameters()))
    assert converter.write_config(config.values(), source, "causal_lm", torch.float32) == source | {
        "architectures": [converter.architectures["causal_lm"]]
    }
