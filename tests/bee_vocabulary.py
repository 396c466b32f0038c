"""A vocabulary of CPM-Bee's kind that can be read at a glance."""

import json
from pathlib import Path

from modelzoo.data import Tokenizer, load_tokenizer

LINES = [
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<root>",
    "<ans>",
    "<mask>",
    "</_>",
    "",
    "</n>",
    "今天",
    "天",
    "天气",
    "好",
    "input",
    "?",
    "<",
]
IDS = {token: number for number, token in enumerate(filter(None, LINES))}
NUM_TOKENS = 16


def bee_folder(place: Path) -> Path:
    """Write vocab.txt and a config that names the family."""
    (place / "vocab.txt").write_text("\n".join(LINES) + "\n")
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CpmBeeTokenizer"}))
    return place


def bee_tokenizer(place: Path) -> Tokenizer:
    return load_tokenizer(bee_folder(place))
