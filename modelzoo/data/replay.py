"""Chats that a run learned, tokenized once more as others will: by transformers, from the folder of the result."""

import json
from dataclasses import dataclass
from pathlib import Path

from modelzoo.data.chat import ChatEncoder, chat_template
from modelzoo.data.tasks import Recipe, Rows, find_columns
from modelzoo.data.tasks.causal_lm import read_chats
from modelzoo.errors import CheckpointError

__all__ = ["Replay", "replay_chats"]

SHOWN = 120
"""Characters of a text that differs."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Chats whose tokens are the same here and there."""

    chats: int
    tokens: int


def replay_chats(rows: Rows, recipe: Recipe, folder: Path) -> Replay:
    """Compare the tokens of chats with those that transformers' tokenizer and template in a folder give.

    Args:
        rows: Chats or instructions.
        recipe: How the run encoded its rows; its tokenizer and template are those of the run.
        folder: Of the result.

    Raises:
        CheckpointError: A chat differs; the message has both texts.
        DataError: The rows are no chats.
    """
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    template = chat_template(recipe.tokenizer, recipe.template)
    encoder = ChatEncoder(recipe.tokenizer, template)
    columns = find_columns(rows, "causal_lm", recipe.columns, source=recipe.source)
    tokens = 0
    for number, messages in enumerate(read_chats(rows, columns, recipe.source), start=1):
        learned, _ = encoder.encode(messages)
        found = theirs.apply_chat_template(messages, return_dict=True)["input_ids"]
        if found != learned:
            raise CheckpointError(
                f"{recipe.source}: row {number}: expected the tokens that were learned, {_shown(template.text(messages))}; "
                f"transformers in {folder} gives {_shown(theirs.apply_chat_template(messages, tokenize=False))}"
            )
        tokens += len(learned)
    return Replay(len(rows), tokens)


def _shown(text: str) -> str:
    """Return a text with its white space visible."""
    return json.dumps(text if len(text) <= SHOWN else f"{text[:SHOWN]}...", ensure_ascii=False)
