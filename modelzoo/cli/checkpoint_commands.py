"""`modelzoo convert` and `modelzoo verify`: checkpoints in, Hugging Face folders out, and the proof that both mean the same."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from modelzoo.cli.console import columns, say, say_json
from modelzoo.cli.results import model_folder, quiet_transformers
from modelzoo.errors import ConfigError
from modelzoo.quantities import counted

__all__ = ["convert", "verify"]

Task = Annotated[str | None, typer.Option(help="Head, as base or classification; by default the checkpoint's own.")]
Family = Annotated[str | None, typer.Option(help="Model type, as bert, for a config.json from before 2020 that has none.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Read a pytorch_model.bin; only from where you trust.")]


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder, run or hub id: safetensors (one file or many) or .bin.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="New folder; an existing one is never touched.")],
    dtype: Annotated[str, typer.Option(help="Dtype of the file: auto (as it is), float32, bfloat16 or float16.")] = "auto",
    task: Task = None,
    family: Family = None,
    max_shard_size: Annotated[str, typer.Option(help="Largest weights file, as 5GB.")] = "50GB",
    allow_pickle: AllowPickle = False,
    library: Annotated[str | None, typer.Option("--from", help="modelcenter: SRC is a folder of ModelCenter's.")] = None,
    residual_scale: Annotated[int | None, typer.Option(help="For ModelCenter's T5: 100 (t5, v1_1, mt5) or 1 (flan-t5).")] = None,
) -> None:
    """Read a checkpoint strictly and write it as a plain Hugging Face folder.

    Old names (gamma, beta), missing prefixes, shards and pickled files become one current form; tokenizer files are copied.
    """
    if library is not None:
        task = _foreign_task(library, task, family)
    if library is not None and task is None:
        options = {"family": family, "dtype": dtype, "residual_scale": residual_scale, "allow_pickle": allow_pickle}
        _convert_foreign(source, target, **options, max_shard_size=max_shard_size)
        return
    if residual_scale is not None:
        raise ConfigError(f"--residual-scale {residual_scale}: expected --from modelcenter and T5 beside it")
    from modelzoo.models.auto import from_pretrained

    model = from_pretrained(model_folder(source), family=family, task=task, dtype=dtype, allow_pickle=allow_pickle)
    folder = model.save_pretrained(target, max_shard_size=max_shard_size)
    count = sum(parameter.numel() for parameter in model.parameters())
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})
    say(f"wrote {folder}: {type(model).__name__} for {model.task}, {count:,} parameters, {', '.join(dtypes)}")
    if model.load_report is not None and model.load_report.new:
        say(f"  new, not in {source}: {', '.join(model.load_report.new)}")
    say(f"  compare it with transformers: modelzoo verify {folder}")


def _foreign_task(library: str, task: str | None, family: str | None) -> str | None:
    """Return the task of a family whose names are the other library's, and None for one whose names are translated."""
    from modelzoo.converters.modelcenter import KEPT

    if library != "modelcenter":
        raise ConfigError(f"--from {library}: expected modelcenter; a Hugging Face folder needs no --from")
    if family in KEPT:
        return task or KEPT[family]
    if task is not None:
        raise ConfigError(f"--task {task}: expected none with --from {library}: all that the file has is written")
    return None


def _convert_foreign(source: str, target: Path, **options: Any) -> None:
    """Convert a checkpoint of another library and say what was done."""
    from modelzoo.hub import convert_modelcenter

    done = convert_modelcenter(source, target, **options)
    dtype = str(done.dtype).removeprefix("torch.")
    say(f"wrote {done.folder}: {done.family} for {done.task}, {done.num_parameters:,} parameters, {dtype}")
    for note in done.notes:
        say(f"  note: {note}")
    for reason in dict.fromkeys(why for _, why in done.left_out):
        keys = [key for key, why in done.left_out if why == reason]
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        say(f"  left out: {', '.join(keys[:3])}{more} ({reason})")
    say(f"  compare it with transformers: modelzoo verify {done.folder}")


def verify(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder in Hugging Face's form, a run, or a hub id.")],
    tolerance: Annotated[float, typer.Option(help="Largest absolute difference that counts as equal.")] = 1e-5,
    task: Task = None,
    family: Family = None,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Run transformers and ours on the same batch: largest difference of outputs and gradients; exit code 1 above the tolerance."""
    from modelzoo.verification import verify as compare

    quiet_transformers()
    options = {"tolerance": tolerance, "task": task, "family": family, "allow_pickle": allow_pickle}
    found = compare(model_folder(folder), **options)  # type: ignore[arg-type] # any text is a task here; it is checked where used
    if as_json:
        say_json({**dataclasses.asdict(found), "is_equal": found.is_equal})
    else:
        say(f"{found.folder}: {found.reference} of transformers against modelzoo, task {found.task}, float32")
        rows = [[name, f"{difference:.2e}", f"values up to {found.sizes[name]:.3g}"] for name, difference in found.outputs.items()]
        rows.append(
            [
                "gradients",
                f"{found.gradient:.2e}",
                f"worst of {counted(found.num_parameters, 'parameter')}: {found.worst_parameter}",
            ]
        )
        say(columns([["largest difference", "", ""], *rows]))
        for what, names in (("drawn anew by transformers", found.missing), ("in the folder, not used", found.unexpected)):
            if names:
                say(f" {what}: {', '.join(names)}")
        scaled = " of the outputs' size" if any(size > 1 for size in found.sizes.values()) else ""
        say(f" {'equal' if found.is_equal else 'NOT equal'} within {tolerance:g}{scaled}")
    if not found.is_equal:
        raise typer.Exit(1)
