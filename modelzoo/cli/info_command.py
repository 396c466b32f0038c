"""`modelzoo info`: what a model folder or a hub id is, from its small files and the headers of its weights."""

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer

from modelzoo.cli.adapter_info import adapter_facts, adapter_uses, is_adapter
from modelzoo.cli.console import columns, say, say_json
from modelzoo.cli.results import model_folder

__all__ = ["info"]

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
SIZE_KEYS = ("hidden_size", "n_embd", "d_model", "dim_model", "dim")
HASHED_BYTES = 2**30
"""Up to here files are hashed unasked."""


def info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder in Hugging Face's form, a run, or a hub id.")],
    hashes: Annotated[
        bool, typer.Option("--hash", help="Hash files of any size; by default those of a GiB or less in all.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Show a model: family, tasks, parameters, dtype, licence, tokenizer, context, files with sizes and hashes, what can serve it.

    Of an adapter: its kind, rank, base and how it is used; what can serve it is said of the model that it becomes when merged.

    Of a hub id the small files are fetched, no weight; parameters then come from the weights' headers.
    """
    facts = _facts(model, is_hashing=hashes)
    if as_json:
        say_json(facts)
        return
    beside = ("files", "served_by", "use", "base_found", "adapter_for")
    rows = [[name.replace("_", " "), _shown(value)] for name, value in facts.items() if name not in beside]
    say(columns([row for row in rows if row[1]]))
    if "use" in facts:
        say("\n" + columns(facts["use"]))
    heading = "takes it for" if "use" not in facts else "takes it, merged, for"
    say("\n" + columns([["program", heading], *([server, use or "no"] for server, use in facts["served_by"].items())]))
    if facts["files"]:
        from modelzoo.quantities import readable_size

        files = [[file["name"], readable_size(file["bytes"]), file["sha256"] or ""] for file in facts["files"]]
        say("\n" + columns([["file", "size", "sha256"], *files]))


def _facts(model: str, *, is_hashing: bool) -> dict[str, Any]:
    from modelzoo import hub
    from modelzoo.report.front_matter import license_of
    from modelzoo.report.serving import served_by

    name = model_folder(model)
    folder = Path(name) if is_adapter(Path(name)) else hub.resolve(name, with_weights=False)
    adapter = adapter_facts(folder) if is_adapter(folder) else {}
    config = _config(folder, adapter)
    architecture = str(next(iter(config.get("architectures") or []), ""))
    family, tasks = _family(config)
    return {
        "model": name,
        "revision": hub.revision_of(folder),
        "family": family,
        "class": architecture,
        "tasks": tasks,
        **adapter,
        **({} if adapter else _weights(name, folder)),
        "layers": _first(config, LAYER_KEYS),
        "hidden_size": _first(config, SIZE_KEYS),
        "vocabulary": config.get("vocab_size"),
        "context": _first(config, CONTEXT_KEYS),
        "labels": list((config.get("id2label") or {}).values())[:20] if "Classification" in architecture else [],
        "license": license_of(folder) or "not stated",
        **_tokenizer(folder),
        "served_by": served_by(architecture),
        **({"use": adapter_uses(model, name, adapter)} if adapter else {}),
        "files": _files(folder, is_hashing=is_hashing),
    }


def _config(folder: Path, adapter: dict[str, Any]) -> dict[str, Any]:
    """Return config.json, of an adapter that has none that of its base, where it is here."""
    from modelzoo import hub

    if not adapter or (folder / "config.json").is_file():
        return hub.read_config(folder)
    return hub.read_config(Path(adapter["base"])) if adapter["base_found"] else {}


def _family(config: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the model type, and the tasks that modelzoo has for it."""
    from modelzoo.errors import ModelZooError
    from modelzoo.models.auto import model_class

    kind = str(config.get("model_type", "not stated"))
    try:
        return kind, list(model_class(kind).tasks)
    except ModelZooError:
        return f"{kind} (not one of modelzoo's families)", []


def _weights(name: str, folder: Path) -> dict[str, Any]:
    """Return the number of parameters and their dtypes from the headers, of files here or on the hub."""
    from modelzoo.errors import ModelZooError
    from modelzoo.hub.checkpoint import open_checkpoint

    try:
        with open_checkpoint(folder, allow_pickle=False) as checkpoint:
            counts: dict[str, int] = {}
            for tensor in checkpoint.tensors.values():
                kind = str(tensor.dtype).removeprefix("torch.")
                counts[kind] = counts.get(kind, 0) + _product(tensor.shape)
    except ModelZooError:
        counts = _remote_counts(name)
    dtypes = [f"{kind} {count:,}" for kind, count in sorted(counts.items(), key=lambda item: -item[1])]
    return {"parameters": sum(counts.values()) or None, "dtypes": dtypes if len(dtypes) > 1 else list(counts)}


def _remote_counts(name: str) -> dict[str, int]:
    """Ask the hub for the headers alone; {} where that cannot be had."""
    import os

    if Path(name).is_dir() or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return {}
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import HTTPError, NotASafetensorsRepoError

    try:
        return dict(get_safetensors_metadata(name).parameter_count)
    except (HTTPError, NotASafetensorsRepoError, OSError):
        return {}


def _tokenizer(folder: Path) -> dict[str, Any]:
    from modelzoo.data import load_tokenizer
    from modelzoo.errors import ModelZooError

    try:
        tokenizer = load_tokenizer(folder)
    except ModelZooError:
        return {"tokenizer": "none that can be read"}
    roles = {role: getattr(tokenizer, f"{role}_id") for role in ("bos", "eos", "pad", "unk", "cls", "sep", "mask")}
    special = [f"{role} {tokenizer.tokens([token_id])[0]}" for role, token_id in roles.items() if token_id is not None]
    has_template = (folder / "chat_template.jinja").is_file() or "chat_template" in _text(folder / "tokenizer_config.json")
    kind = repr(tokenizer).partition("(")[2].partition(",")[0]
    return {
        "tokenizer": f"{kind}, {tokenizer.vocab_size:,} tokens",
        "special_tokens": special,
        "chat_template": "yes" if has_template else "no",
    }


def _files(folder: Path, *, is_hashing: bool) -> list[dict[str, Any]]:
    found = [(path, path.stat().st_size) for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    hashed = is_hashing or sum(size for _, size in found) <= HASHED_BYTES
    return [{"name": path.name, "bytes": size, "sha256": _sha256(path) if hashed else None} for path, size in found]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
