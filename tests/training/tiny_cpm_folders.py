"""Tiny CPM-1 and CPM-2 folders, in ModelCenter's layouts, with vocabularies of single characters."""

from pathlib import Path

import torch

from modelzoo.models.cpm1 import CPM1, CPM1Config
from modelzoo.models.cpm2 import CPM2, CPM2Config

__all__ = ["cpm1_folder", "cpm2_folder"]

CHARACTERS = [*"今天气很好你吃了吗晴与的意思不相同。“”", "天气", "不同", "相同"]


def cpm1_folder(folder: Path) -> Path:
    """Write a CPM-1 of 2 layers and width 16."""
    torch.manual_seed(0)
    special = ["<pad>", "<s>", "</s>", "<sep>", "<eod>", "<unk>", "<mask>", "</n>", "</_>"]
    config = CPM1Config(
        vocab_size=len(special) + len(CHARACTERS), hidden_size=16, num_layers=2, num_heads=2, head_size=8, intermediate_size=32,
        num_buckets=8, max_distance=16,
    )  # fmt: skip
    CPM1.from_config(config, "causal_lm").save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*special, *CHARACTERS]) + "\n", encoding="utf-8")
    return folder


def cpm2_folder(folder: Path) -> Path:
    """Write a CPM-2 of 2 + 2 layers and width 16, with its 190 sentinels."""
    torch.manual_seed(0)
    special = ["<unk>", "<s>", "</s>", "▃", "<sep>", "<pad>", "<mask>", "<eod>", "▂"]
    tokens = [*special, *CHARACTERS, *(f"<s_{number}>" for number in range(190))]
    config = CPM2Config(
        vocab_size=len(tokens), hidden_size=16, head_size=8, intermediate_size=32, num_layers=2, num_decoder_layers=2, num_heads=2
    )
    CPM2.from_config(config, "seq2seq_lm").save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder
