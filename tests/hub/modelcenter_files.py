"""Tiny models of transformers written as ModelCenter keeps them, by the naive formulas of its layout."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24}
SHAPE = {"vocab_size": 40, "dim_model": 16, "num_layers": 3, "num_heads": 4, "dim_head": 4, "dim_ff": 24}
GPT = {"vocab_size": 41, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_inner": 24, "n_positions": 18, "resid_pdrop": 0.0}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
T5_SHAPE = {"vocab_size": 40, "dim_model": 16, "dim_head": 6, "dim_ff": 24, "num_heads": 4}

Files = tuple[nn.Module, dict[str, Any], dict[str, Tensor]]
"""The model of transformers, ModelCenter's config, and its tensors."""


def randomised(model: nn.Module) -> nn.Module:
    """Give every parameter values of its own; norms stay near one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() or "ln_" in name
            parameter.copy_(1 + 0.2 * noise if is_norm and name.endswith("weight") else 0.2 * noise)
    return model.eval()


def put(out: dict[str, Tensor], name: str, theirs: dict[str, Tensor], source: str, *, divide: float = 1) -> None:
    """Copy a module's weight and, where it has one, its bias."""
    for part in ("weight", "bias"):
        if f"{source}.{part}" in theirs:
            out[f"{name}.{part}"] = theirs[f"{source}.{part}"] / divide if divide != 1 else theirs[f"{source}.{part}"].clone()


def put_attention(out: dict[str, Tensor], name: str, theirs: dict[str, Tensor], names: list[str], *, divide: float = 1) -> None:
    for their, source in zip(("project_q", "project_k", "project_v", "attention_out"), names, strict=True):
        put(out, f"{name}.self_attention.{their}", theirs, source, divide=divide if their == "attention_out" else 1)


def bert(family: str = "bert", **options: Any) -> Files:
    """BERT, RoBERTa or Longformer with its head: each norm stands before the sublayer that comes after it."""
    kind = {"bert": "Bert", "roberta": "Roberta", "longformer": "Longformer"}[family]
    types, pad = {"bert": (2, 0), "roberta": (1, 1), "longformer": (2, 1)}[family]
    fields = SIZES | {"max_position_embeddings": 20, "type_vocab_size": types, "pad_token_id": pad} | options
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = randomised(getattr(transformers, f"{kind}ForMaskedLM")(config))
    theirs = dict(model.state_dict())
    backbone = randomised(getattr(transformers, f"{kind}Model")(config))
    theirs |= {f"{family}.{name}": value for name, value in backbone.state_dict().items() if name.startswith("pooler.")}
    out: dict[str, Tensor] = {}
    for name, source in (("input", "word"), ("position", "position"), ("token_type", "token_type")):
        put(out, f"{name}_embedding", theirs, f"{family}.embeddings.{source}_embeddings")
    norm = f"{family}.embeddings.LayerNorm"
    for layer in range(3):
        ours, source = f"encoder.layers.{layer}", f"{family}.encoder.layer.{layer}"
        put(out, f"{ours}.self_att.layernorm_before_attention", theirs, norm)
        names = [f"{source}.attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")]
        put_attention(out, f"{ours}.self_att", theirs, names)
        for letter, name in zip("qkv", ("query", "key", "value"), strict=True):
            put(out, f"{ours}.self_att.self_attention.project_{letter}_global", theirs, f"{source}.attention.self.{name}_global")
        put(out, f"{ours}.ffn.layernorm_before_ffn", theirs, f"{source}.attention.output.LayerNorm")
        put(out, f"{ours}.ffn.ffn.w_in.w", theirs, f"{source}.intermediate.dense")
        put(out, f"{ours}.ffn.ffn.w_out", theirs, f"{source}.output.dense")
        norm = f"{source}.output.LayerNorm"
    put(out, "encoder.output_layernorm", theirs, norm)
    put(out, "pooler.dense", theirs, f"{family}.pooler.dense")
    head = "cls.predictions.transform" if family == "bert" else "lm_head"
    put(out, "lm_head.dense", theirs, f"{head}.dense")
    put(out, "lm_head.layer_norm", theirs, f"{head}.{'LayerNorm' if family == 'bert' else 'layer_norm'}")
    put(out, "lm_head.decoder", theirs, "cls.predictions.decoder" if family == "bert" else "lm_head.decoder")
    config = SHAPE | {"position_size": 20, "type_size": types, "tied": bool(options.get("tie_word_embeddings", True))}
    config |= {"attention_window": options["attention_window"]} if family == "longformer" else {}
    return model, config | ({"norm_eps": 1e-12} if family == "roberta" else {}), out


def gpt2(*, padded: bool = True, stack: str = "encoder") -> Files:
    """GPT-2: linear maps the other way round, query, key and value apart, a row of zeros after the vocabulary."""
    model = randomised(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT)))
    theirs = dict(model.state_dict())
    out: dict[str, Tensor] = {}
    table = theirs["transformer.wte.weight"]
    out["input_embedding.weight"] = torch.cat([table, torch.zeros(1, 16)]) if padded else table.clone()
    put(out, "position_embedding", theirs, "transformer.wpe")
    for layer in range(3):
        ours, source = f"{stack}.layers.{layer}", f"transformer.h.{layer}"
        put(out, f"{ours}.self_att.layernorm_before_attention", theirs, f"{source}.ln_1")
        for index, letter in enumerate("qkv"):
            name = f"{ours}.self_att.self_attention.project_{letter}"
            out[f"{name}.weight"] = theirs[f"{source}.attn.c_attn.weight"][:, 16 * index : 16 * index + 16].T.contiguous()
            out[f"{name}.bias"] = theirs[f"{source}.attn.c_attn.bias"][16 * index : 16 * index + 16].clone()
        maps = {"self_att.self_attention.attention_out": "attn.c_proj", "ffn.ffn.w_in.w": "mlp.c_fc", "ffn.ffn.w_out": "mlp.c_proj"}
        for name, their in maps.items():
            out[f"{ours}.{name}.weight"] = theirs[f"{source}.{their}.weight"].T.contiguous()
            out[f"{ours}.{name}.bias"] = theirs[f"{source}.{their}.bias"].clone()
        put(out, f"{ours}.ffn.layernorm_before_ffn", theirs, f"{source}.ln_2")
    put(out, f"{stack}.output_layernorm", theirs, "transformer.ln_f")
    config = SHAPE | {"vocab_size": 41 + padded, "position_size": 18, "ffn_activate_fn": "gelu_new", "tied": True}
    return model, config, out


def gptj() -> Files:
    """GPT-J: its one norm is stored twice."""
    model = randomised(transformers.GPTJForCausalLM(transformers.GPTJConfig(**GPT, rotary_dim=4)))
    theirs = dict(model.state_dict())
    out: dict[str, Tensor] = {}
    put(out, "input_embedding", theirs, "transformer.wte")
    for layer in range(3):
        ours, source = f"encoder.layers.{layer}", f"transformer.h.{layer}"
        for name in ("self_att.layernorm_before_attention", "ffn.layernorm_before_ffn"):
            put(out, f"{ours}.{name}", theirs, f"{source}.ln_1")
        names = [f"{source}.attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
        put_attention(out, f"{ours}.self_att", theirs, names)
        put(out, f"{ours}.ffn.ffn.w_in.w", theirs, f"{source}.mlp.fc_in")
        put(out, f"{ours}.ffn.ffn.w_out", theirs, f"{source}.mlp.fc_out")
    put(out, "encoder.output_layernorm", theirs, "transformer.ln_f")
    put(out, "output_projection", theirs, "lm_head")
    return model, SHAPE | {"vocab_size": 41, "pos_rotary_dim": 4, "ffn_activate_fn": "gelu_new"}, out


def opt() -> Files:
    fields = {**SIZES, "ffn_dim": 24, "max_position_embeddings": 18, "word_embed_proj_dim": 16}
    model = randomised(transformers.OPTForCausalLM(transformers.OPTConfig(**fields)))
    theirs = dict(model.state_dict())
    out: dict[str, Tensor] = {}
    put(out, "input_embedding", theirs, "model.decoder.embed_tokens")
    put(out, "position_embedding", theirs, "model.decoder.embed_positions")
    for layer in range(3):
        ours, source = f"decoder.layers.{layer}", f"model.decoder.layers.{layer}"
        put(out, f"{ours}.self_att.layernorm_before_attention", theirs, f"{source}.self_attn_layer_norm")
        names = [f"{source}.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
        put_attention(out, f"{ours}.self_att", theirs, names)
        put(out, f"{ours}.ffn.layernorm_before_ffn", theirs, f"{source}.final_layer_norm")
        put(out, f"{ours}.ffn.ffn.w_in.w", theirs, f"{source}.fc1")
        put(out, f"{ours}.ffn.ffn.w_out", theirs, f"{source}.fc2")
    put(out, "decoder.output_layernorm", theirs, "model.decoder.final_layer_norm")
    config = SHAPE | {"position_size": 18, "ffn_activate_fn": "relu", "post_layer_norm": False, "pad_token_id": 1}
    return model, config, out


def llama(*, tied: bool = False) -> Files:
    """LLaMA with grouped keys."""
    fields = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": tied}
    model = randomised(transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields)))
    theirs = dict(model.state_dict())
    out: dict[str, Tensor] = {}
    put(out, "input_embedding", theirs, "model.embed_tokens")
    for layer in range(3):
        ours, source = f"encoder.layers.{layer}", f"model.layers.{layer}"
        put(out, f"{ours}.self_att.layernorm_before_attention", theirs, f"{source}.input_layernorm")
        names = [f"{source}.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
        put_attention(out, f"{ours}.self_att", theirs, names)
        put(out, f"{ours}.ffn.layernorm_before_ffn", theirs, f"{source}.post_attention_layernorm")
        for name, their in (("w_in.w_0", "gate_proj"), ("w_in.w_1", "up_proj"), ("w_out", "down_proj")):
            put(out, f"{ours}.ffn.ffn.{name}", theirs, f"{source}.mlp.{their}")
    put(out, "encoder.output_layernorm", theirs, "model.norm")
    if not tied:
        put(out, "output_projection", theirs, "lm_head")
    return model, SHAPE | {"num_heads_kv": 2} | ({"tied": True} if tied else {}), out


def t5(kind: str = "v1.0", *, scale: float = 100) -> Files:
    """T5: what adds to the residual is divided by `scale`, each of two maps in a row by its root."""
    is_gated, is_mt5 = kind != "v1.0", kind == "mt5"
    name = "MT5" if is_mt5 else "T5"
    fields = T5 | {"feed_forward_proj": "gated-gelu" if is_gated else "relu", "tie_word_embeddings": not is_gated}
    fields |= {"decoder_start_token_id": 0}
    model = randomised(getattr(transformers, f"{name}ForConditionalGeneration")(getattr(transformers, f"{name}Config")(**fields)))
    if is_gated:
        generator = torch.Generator().manual_seed(1)
        model.lm_head.weight = nn.Parameter(0.2 * torch.randn(40, 16, generator=generator))
    theirs = dict(model.state_dict())
    out: dict[str, Tensor] = {}
    put(out, "input_embedding", theirs, "shared", divide=scale)
    if is_gated:
        put(out, "output_projection", theirs, "lm_head")
    for side, layers in (("encoder", 2), ("decoder", 3)):
        table = theirs[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        out[f"position_bias_{side[:3]}.relative_attention_bias"] = table.clone()
        put(out, f"{side}.output_layernorm", theirs, f"{side}.final_layer_norm")
        for layer in range(layers):
            ours, source = f"{side}.layers.{layer}", f"{side}.block.{layer}.layer"
            kinds = [("self_att", "SelfAttention")] + ([("cross_att", "EncDecAttention")] if side == "decoder" else [])
            for index, (block, their) in enumerate(kinds):
                put(out, f"{ours}.{block}.layernorm_before_attention", theirs, f"{source}.{index}.layer_norm")
                names = [f"{source}.{index}.{their}.{letter}" for letter in "qkvo"]
                put_attention(out, f"{ours}.{block}", theirs, names, divide=scale)
            last = f"{source}.{len(kinds)}"
            put(out, f"{ours}.ffn.layernorm_before_ffn", theirs, f"{last}.layer_norm")
            if is_gated:
                put(out, f"{ours}.ffn.ffn.w_in.w_0", theirs, f"{last}.DenseReluDense.wi_0")
                put(out, f"{ours}.ffn.ffn.w_in.w_1", theirs, f"{last}.DenseReluDense.wi_1", divide=scale**0.5)
            else:
                put(out, f"{ours}.ffn.ffn.w_in.w", theirs, f"{last}.DenseReluDense.wi", divide=scale**0.5)
            put(out, f"{ours}.ffn.ffn.w_out", theirs, f"{last}.DenseReluDense.wo", divide=scale**0.5)
    activation = "gated_gelu_new" if is_gated else "relu"
    config = T5_SHAPE | {"num_encoder_layers": 2, "num_decoder_layers": 3, "ffn_activate_fn": activation, "tied": not is_gated}
    return model, config, out


VIT = {"image_size": 8, "patch_size": 4, "num_channels": 2, "num_labels": 5, "layer_norm_eps": 1e-5}
VIT_SHAPE = {"img_size": 8, "patch_size": 4, "channels_in": 2, "num_classes": 5, "hidden_size": 16, "num_layers": 3, "num_heads": 4}


def vit() -> Files:
    """ViT: its norms stand where Hugging Face's do, in blocks of another name."""
    sizes = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    model = randomised(transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, **VIT)))
    place = Path(tempfile.mkdtemp())
    model.save_pretrained(place)  # transformers has other names in memory
    theirs = load_file(place / "model.safetensors")
    shutil.rmtree(place)
    out: dict[str, Tensor] = {}
    put(out, "patch_embed.proj", theirs, "vit.embeddings.patch_embeddings.projection")
    out["patch_embed.cls_token"] = theirs["vit.embeddings.cls_token"]
    out["patch_embed.pos_embed"] = theirs["vit.embeddings.position_embeddings"]
    for layer in range(3):
        ours, source = f"blocks.layers.{layer}", f"vit.encoder.layer.{layer}"
        put(out, f"{ours}.self_att.layernorm_before_attention", theirs, f"{source}.layernorm_before")
        names = [f"{source}.attention.{name}" for name in ("attention.query", "attention.key", "attention.value", "output.dense")]
        put_attention(out, f"{ours}.self_att", theirs, names)
        put(out, f"{ours}.ffn.layernorm_before_ffn", theirs, f"{source}.layernorm_after")
        put(out, f"{ours}.ffn.ffn.w_in.w", theirs, f"{source}.intermediate.dense")
        put(out, f"{ours}.ffn.ffn.w_out", theirs, f"{source}.output.dense")
    put(out, "blocks.output_layernorm", theirs, "vit.layernorm")
    put(out, "head", theirs, "classifier")
    return model, VIT_SHAPE | {"mlp_size": 24, "attn_bias": True, "norm_bias": True, "ffn_bias": True, "drop": 0.0}, out


def written(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a folder as ModelCenter does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "pytorch_model.pt")
    return folder
