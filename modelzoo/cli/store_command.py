"""`modelzoo data build`: texts tokenized once, for pretraining on more than fits into memory."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelzoo.cli.console import columns, say
from modelzoo.quantities import counted

if TYPE_CHECKING:
    from modelzoo.data.store import BuildProgress

__all__ = ["data_build"]

LOG_EVERY_S = 60.0


def data_build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Whose tokenizer: a Hugging Face folder or a hub id.")],
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Texts: .jsonl, .parquet, .json, .csv, .tsv or .txt.")],
    output: Annotated[Path, typer.Option(help="New folder, for data.train and data.validation.")],
    column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
) -> None:
    """Tokenize texts once into a folder that runs read from disk as they need it.

    modelzoo data build gpt2 part-*.jsonl --output tokens, then modelzoo train gpt2-text data.train=tokens

    A build that was interrupted goes on where it was when the same command is given again. The two files of the folder have the
    form that Megatron-LM reads.
    """
    from modelzoo import hub
    from modelzoo.data import load_tokenizer
    from modelzoo.data.store import build_store

    tokenizer = load_tokenizer(hub.resolve(model))
    with _Display() as display:
        report = build_store(files, tokenizer, output, column=column, progress=display.show)
    if report.resumed_at:
        say(f"resumed  after {counted(report.resumed_at, 'document')} of an earlier build")
    manifest = report.manifest
    size = sum(file.stat().st_size for file in output.iterdir()) / 2**20
    empty = f" ({manifest.empty_documents:,} without a token left out)" if manifest.empty_documents else ""
    rows = [
        ["documents", f"{manifest.documents:,}{empty}"],
        ["tokens", f"{manifest.tokens:,} of a vocabulary of {manifest.vocab_size:,}"],
        ["size", f"{size:,.1f} MiB"],
        ["use", f"data.train={output}"],
    ]
    say(columns(rows, indent=0))


class _Display:
    """A live line on a terminal, a line a minute elsewhere."""

    def __enter__(self) -> "_Display":
        from rich.console import Console
        from rich.status import Status

        console = Console(stderr=True)
        self._status = Status("reading", console=console) if console.is_terminal else None
        self._started = self._said = time.monotonic()
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, done: "BuildProgress") -> None:
        """Say how far the build is."""
        now = time.monotonic()
        text = f"file {done.file} of {done.files} · {counted(done.documents, 'document')} · {counted(done.tokens, 'token')}"
        if self._status is not None:
            self._status.update(f"{text} · {now - self._started:.0f} s")
        elif now - self._said >= LOG_EVERY_S:
            self._said = now
            say(text)
