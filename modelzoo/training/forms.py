"""In which form and under which names a run had its rows, and what of that its result has to carry."""

import json
from pathlib import Path
from typing import Any

from modelzoo.config import RunSettings
from modelzoo.data import load_tokenizer
from modelzoo.data.chat import ChatEncoder, chat_template

__all__ = ["store_chat", "trained_columns", "trained_form"]


def trained_form(run_folder: Path) -> str:
    """Return the form of a run's training rows: text, completion, chat, pair; empty for other tasks and for older runs.

    Args:
        run_folder: Of the run.
    """
    return str(_train_facts(run_folder).get("form", ""))


def trained_columns(run_folder: Path) -> dict[str, str] | None:
    """Return the column of each role of a run's training rows; None for a token store and for older runs.

    Args:
        run_folder: Of the run.
    """
    found = _train_facts(run_folder).get("columns")
    return {str(role): str(column) for role, column in found.items()} if isinstance(found, dict) else None


def _train_facts(run_folder: Path) -> dict[str, Any]:
    """Return what data.json says of the training rows; {} where there is none."""
    file = run_folder / "data.json"
    found = json.loads(file.read_text(encoding="utf-8")).get("train") if file.is_file() else None
    return found if isinstance(found, dict) else {}


def store_chat(folder: Path, settings: RunSettings) -> None:
    """Put a run's chat template into its result, with the tokens that end an answer, so that every server asks in the same way.

    Args:
        folder: The result, in Hugging Face's form.
        settings: Of the run, whose rows were chats.
    """
    tokenizer = load_tokenizer(folder)
    template = chat_template(tokenizer, settings.data.template)
    if settings.data.template is not None:
        (folder / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    file = folder / "generation_config.json"
    values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    known = values.get("eos_token_id")
    known = known if isinstance(known, list) else [] if known is None else [known]
    ends = [*known, *(token_id for token_id in ChatEncoder(tokenizer, template).end_ids if token_id not in known)]
    values["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
