"""In which of its forms a language model's run had its rows, and what of that its result has to carry."""

import json
from pathlib import Path

from modelzoo.config import RunSettings
from modelzoo.data import load_tokenizer
from modelzoo.data.chat import ChatEncoder, chat_template

__all__ = ["store_chat", "trained_form"]


def trained_form(run_folder: Path) -> str:
    """Return the form of a run's training rows: text, completion, chat, pair; empty for other tasks and for older runs.

    Args:
        run_folder: Of the run.
    """
    file = run_folder / "data.json"
    if not file.is_file():
        return ""
    return str(json.loads(file.read_text(encoding="utf-8")).get("train", {}).get("form", ""))


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
