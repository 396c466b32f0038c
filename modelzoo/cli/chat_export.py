"""What `modelzoo export` adds for a model that learned chats: the prompt as it is read, and a replay of rows by transformers."""

import json
from pathlib import Path

from modelzoo.errors import DataError

__all__ = ["learned_chats", "prompt_shown", "replay"]

REPLAYED = 5


def learned_chats(run: Path) -> bool:
    """Return whether a folder is that of a run that learned chats.

    Args:
        run: Any folder.
    """
    from modelzoo.training.forms import trained_form

    return (run / "resolved.yaml").is_file() and trained_form(run) == "chat"


def prompt_shown(folder: Path) -> str:
    """Return what the model reads when a user says Hello, as a JSON string: white space is seen.

    Args:
        folder: Of the result.
    """
    from modelzoo.data import load_tokenizer
    from modelzoo.data.chat import asked_text

    return json.dumps(asked_text(load_tokenizer(folder), "Hello"), ensure_ascii=False)


def replay(run: Path, folder: Path) -> str:
    """Tokenize the first rows of a run's training data as the run did and as transformers does in a folder; return what came of it.

    Args:
        run: That learned chats.
        folder: Of its result.

    Raises:
        CheckpointError: They differ.
    """
    from modelzoo.config import read_settings
    from modelzoo.data import load_tokenizer, read_rows
    from modelzoo.data.replay import replay_chats
    from modelzoo.data.tasks import Recipe

    data = read_settings(run / "resolved.yaml").data
    place = data.train or data.name or ""
    if data.train is not None and not Path(place).exists():
        return f"nothing: {place} is not here"
    try:
        rows = read_rows(place, split=None if data.train is not None else "train", max_rows=REPLAYED)
    except DataError as error:
        return f"nothing: {error}"
    source = Path(place).name
    recipe = Recipe(
        task="causal_lm",
        tokenizer=load_tokenizer(run / "final"),
        max_length=data.max_length,
        template=data.template,
        columns=data.columns,
        source=source,
    )
    found = replay_chats(rows, recipe, folder)
    return f"{found.chats} chats of {source}: transformers' tokenizer and template give the same {found.tokens} tokens"
