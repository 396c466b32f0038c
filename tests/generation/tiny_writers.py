"""Tiny random language models of transformers, saved, and the same models of ours, loaded from that folder."""

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

import modelzoo
from modelzoo.models.model import Model

END, PAD = 1, 0
_COMMON = {"vocab_size": 60, "pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": END}
_WIDE = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
CONFIGS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt2": ("gpt2", {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_inner": 24, "n_positions": 40}),
    "llama": ("llama", _WIDE),
    "mistral": ("mistral", _WIDE | {"sliding_window": 4}),
    "qwen3": ("qwen3", _WIDE | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "t5": ("t5", {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}),
    "t5-gated": (
        "t5",
        {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
        | {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6},
    ),
}
WRITERS = list(CONFIGS)
_FOLDERS = tempfile.TemporaryDirectory()


@cache
def theirs(name: str) -> nn.Module:
    """Return transformers' model; its weights are wide, so that its tokens vary."""
    family, options = CONFIGS[name]
    config = transformers.AutoConfig.for_model(family, **_COMMON | options)
    kind = transformers.T5ForConditionalGeneration if family == "t5" else transformers.AutoModelForCausalLM
    model = kind.from_config(config) if family != "t5" else kind(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and parameter_name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_norm else 0.3 * noise)
    model.eval().save_pretrained(folder(name))
    return model


def folder(name: str) -> Path:
    """Return where a model is saved, with a byte-level tokenizer of its 60 ids."""
    path = Path(_FOLDERS.name) / name
    if not path.exists():
        path.mkdir()
        tokenizer().save(str(path / "tokenizer.json"))
        roles = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
        (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | roles))
    return path


def tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer without merges: letters, the space, and the two bytes of an e with an accent."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    texts = ["<pad>", "</s>", "<s>", *letters, "Ġ", ".", "Ã", "©", "?"]
    found = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(["<pad>", "</s>", "<s>"])
    return found


@cache
def ours(name: str) -> Model:
    """Return our model with the same values."""
    theirs(name)
    return modelzoo.from_pretrained(folder(name))


def batch(rows: int = 3, width: int = 6) -> tuple[Tensor, Tensor]:
    """Return (B, T) ids with padding on the left of all rows but the first, and their mask."""
    ids = torch.randint(3, 60, (rows, width), generator=torch.Generator().manual_seed(5))
    mask = torch.arange(width) >= torch.tensor([0, 3, 1, 4, 2][:rows]).unsqueeze(1)
    return ids.masked_fill(~mask, PAD), mask.long()
