"""Tiny GPT-2 and T5 folders with tokenizers made here, rows to write from, and settings for runs of a few steps."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from tiny_runs import run_settings, write_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from modelzoo.config import RunSettings
from modelzoo.models.gpt2 import GPT2, GPT2Config
from modelzoo.models.t5 import T5, T5Config

WORDS = ["the", "cat", "dog", "mat", "sat", "ran", "on", "is", "red", "blue", "who", "what", "yes", "no", "not", "fast"]


def gpt2_folder(folder: Path, *, max_positions: int = 64) -> Path:
    """Write a GPT-2 of 2 layers and width 16 whose tokens are letters and a few words."""
    torch.manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left = "Ġ"
        for letter in word:
            if (left, letter) not in merges:
                merges.append((left, letter))
            left += letter
    tokens = [*alphabet, *dict.fromkeys("".join(pair) for pair in merges), "<|endoftext|>"]
    config = GPT2Config(
        vocab_size=len(tokens), hidden_size=16, num_layers=2, num_heads=2, max_positions=max_positions, pad_token_id=None,
        embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    GPT2.from_config(config, "causal_lm").save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n")
    values = json.loads((folder / "config.json").read_text())
    end = len(tokens) - 1
    (folder / "config.json").write_text(json.dumps(values | {"eos_token_id": end, "bos_token_id": end}))
    return folder


def t5_folder(folder: Path) -> Path:
    """Write a T5 of 2 layers and width 16 whose tokens are words, with 100 sentinels at the end."""
    torch.manual_seed(0)
    words = ["<pad>", "</s>", "<unk>", *WORDS, "question:", "context:"]
    vocabulary = {token: number for number, token in enumerate(words)}
    vocabulary |= {f"<extra_id_{number}>": len(words) + 99 - number for number in range(100)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in range(100))])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    config = T5Config(
        vocab_size=len(vocabulary), hidden_size=16, head_size=8, intermediate_size=32, num_layers=2, num_decoder_layers=2,
        num_heads=2, dropout=0.0,
    )  # fmt: skip
    T5.from_config(config, "seq2seq_lm").save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def sentences(count: int, seed: int = 0, longest: int = 12) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choice(WORDS) for _ in range(generator.randint(3, longest))) for _ in range(count)]


def completion_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts whose completion is their last word."""
    return [{"prompt": f"{text} is", "completion": f" {text.split()[-1]}"} for text in sentences(count, seed)]


def pair_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sources whose target is their last word or the last two."""
    return [
        {"source": text, "target": " ".join(text.split()[-1 - number % 2 :])} for number, text in enumerate(sentences(count, seed))
    ]


def chat_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Chats of one turn or two."""
    rows = []
    for number, text in enumerate(sentences(count, seed, longest=4)):
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text.split()[-1]}]
        rows.append({"messages": messages * (1 + number % 2)})
    return rows


def language_settings(folder: Path, task: str, make: Any = None, **changes: Any) -> RunSettings:
    """Settings of a run in `folder`, which gets a model and data on the first call; changes as `train__batch_size=4`."""
    is_causal = task == "causal_lm"
    make = make or (completion_rows if is_causal else pair_rows)
    if not (folder / "model").exists():
        (gpt2_folder if is_causal else t5_folder)(folder / "model")
        write_rows(folder / "train.jsonl", make(22))
        write_rows(folder / "validation.jsonl", make(9, seed=1))
    return run_settings(folder, task, 48, changes)
