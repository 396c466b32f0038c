"""Perplexity of a language model on plain text: modelzoo beside transformers.Trainer, same model, pieces, order and steps.

    python benchmarks/perplexity.py MODEL_FOLDER SHAKESPEARE_TXT --fresh 4 256 --steps 200 --lr 1e-3
    python benchmarks/perplexity.py MODEL_FOLDER TRAIN_TXT TEST_TXT --steps 20 --seeds 0

Without a text of its own the test is the last tenth of the one file, cut at a line. With --fresh both sides start from the random
weights that transformers gives a GPT-2 of so many layers and of that width, else from those of the folder. Both sides: AdamW with
weight decay 0.01 (not on biases and norms), a linear schedule without warm-up, clipping at 1. The trainer's side tokenizes and cuts
the text and computes the perplexity by itself; the order of the pieces is modelzoo's. With --dropout 0 nothing is left to chance
but the order of sums; with dropout each side draws its own, and seeds show the noise. Every run is a fresh process; a line is
printed as each one ends.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DECAY, CLIP = 0.01, 1.0
TEST_BATCH = 16
IGNORED = -100


def _prepare(options: argparse.Namespace, folder: Path, seed: int) -> None:
    """Write what both sides start from: model, train.txt and test.txt."""
    texts = [file.read_text(encoding="utf-8") for file in options.data]
    if len(texts) == 1:
        cut = texts[0].rindex("\n", 0, len(texts[0]) * 9 // 10) + 1
        texts = [texts[0][:cut], texts[0][cut:]]
    for name, text in zip(("train", "test"), texts, strict=True):
        (folder / f"{name}.txt").write_text(text[: options.test_chars] if name == "test" else text, encoding="utf-8")
    _write_model(options, folder / "model", seed)


def _write_model(options: argparse.Namespace, folder: Path, seed: int) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    dropout = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), options.dropout)
    if options.fresh:
        layers, width = options.fresh
        transformers.set_seed(seed)
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer),
            n_layer=layers,
            n_embd=width,
            n_head=max(width // 64, 1),
            n_positions=options.length,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **dropout,
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype="float32")
        for name in (name for name in dropout if hasattr(model.config, name)):
            setattr(model.config, name, options.dropout)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _modelzoo(options: argparse.Namespace) -> dict[str, float]:
    from modelzoo.config import change_settings
    from modelzoo.training import train

    work = options.work
    settings = change_settings(
        None,
        {
            "model": {"name": work / "model", "task": "causal_lm"},
            "data": {"train": str(work / "train.txt"), "validation": str(work / "test.txt"), "max_length": options.length},
            "train": {
                "batch_size": options.batch,
                "max_steps": options.steps,
                "seed": options.seed,
                "clip_norm": CLIP,
            },
            "optimizer": {"lr": options.lr, "weight_decay": DECAY},
            "schedule": {"name": "linear", "warmup": 0},
            "evaluation": {"every": options.steps, "metric": "perplexity"},
            "checkpoint": {"every": None, "keep_best": False},
            "output": {"folder": str(work / "runs")},
        },
    )
    result = train(settings)
    lines = [json.loads(line) for line in (Path(result.folder) / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    perplexity = [line["evaluation"]["perplexity"] for line in lines if "evaluation" in line][-1]
    return {"perplexity": perplexity, "first_loss": losses[0], "last_loss": losses[-1]}


def _pieces(options: argparse.Namespace, name: str) -> list[dict[str, list[int]]]:
    """Return a text in pieces that overlap by a token, so that every token but the first is predicted once."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.work / "model")
    ids = [*tokenizer((options.work / f"{name}.txt").read_text(encoding="utf-8"))["input_ids"], tokenizer.eos_token_id]
    starts = range(0, len(ids) - 1, options.length - 1)
    cuts = [ids[start : start + options.length] for start in starts]
    return [{"input_ids": cut, "labels": [IGNORED, *cut[1:]]} for cut in cuts]


def _collate(items: list[dict[str, list[int]]]) -> dict[str, Any]:
    import torch

    width = max(len(item["input_ids"]) for item in items)
    padding = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
    rows = [{**item, "attention_mask": [1] * len(item["input_ids"])} for item in items]
    return {key: torch.tensor([row[key] + [fill] * (width - len(row[key])) for row in rows]) for key, fill in padding.items()}


def _trainer(options: argparse.Namespace) -> dict[str, float]:
    import torch
    import transformers
    from torch.utils.data import DataLoader

    from modelzoo.data import BatchStream

    pieces = _pieces(options, "train")
    stream = BatchStream([len(piece["input_ids"]) for piece in pieces], batch_size=options.batch, seed=options.seed)
    batches = [next(stream) for _ in range(options.steps)]

    class InOrder(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=_collate)

    transformers.set_seed(options.seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.work / "model", dtype="float32")
    arguments = transformers.TrainingArguments(
        output_dir=str(options.work / "trainer"),
        max_steps=options.steps,
        learning_rate=options.lr,
        weight_decay=DECAY,
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_grad_norm=CLIP,
        seed=options.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = InOrder(model, arguments, train_dataset=pieces)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    model.eval()
    total, count, test = 0.0, 0, _pieces(options, "test")
    for start in range(0, len(test), TEST_BATCH):
        batch = _collate(test[start : start + TEST_BATCH])
        with torch.no_grad():
            logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        labels = batch["labels"][:, 1:]
        total += float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        count += int((labels != IGNORED).sum())
    return {"perplexity": math.exp(total / count), "first_loss": losses[0], "last_loss": losses[-1]}


SIDES = {"modelzoo": _modelzoo, "trainer": _trainer}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model and tokenizer, or with --fresh the tokenizer alone")
    parser.add_argument("data", type=Path, nargs="+", help="text to train on, and one to test on")
    parser.add_argument("--fresh", type=int, nargs=2, metavar=("LAYERS", "WIDTH"), help="a GPT-2 with random weights")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="pieces of a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a piece")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="of a GPT-2")
    parser.add_argument("--test-chars", type=int, help="test on so many characters at most")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(side: str, seed: int, folder: str) -> float:
    """Run a side in a process of its own, print its line and return its perplexity."""
    start = time.perf_counter()
    command = [sys.executable, *sys.argv, "--side", side, "--seed", str(seed), "--work", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} with seed {seed} failed:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    losses = f"loss {found['first_loss']:.4f} to {found['last_loss']:.4f}"
    print(
        f"{side:<9} seed {seed}  perplexity {found['perplexity']:.4f}  {losses}  ({time.perf_counter() - start:.0f} s)", flush=True
    )
    return found["perplexity"]


def _main() -> None:
    options = _options()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    values: dict[str, list[float]] = {side: [] for side in SIDES}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            _prepare(options, Path(folder), seed)
            for side in SIDES:
                values[side].append(_run(side, seed, folder))
    for side, found in values.items():
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        print(f"{side:<9} perplexity: mean {statistics.mean(found):.3f}, standard deviation {spread:.3f}, seeds {options.seeds}")


if __name__ == "__main__":
    _main()
