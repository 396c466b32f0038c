"""Accuracy of a fine-tuned model on a data set: modelzoo beside transformers.Trainer, same rows, seeds and hyper-parameters.

    python benchmarks/accuracy.py MODEL_FOLDER BOOLQ_JSONL --train 1200 --test 400
    python benchmarks/accuracy.py MODEL_FOLDER COPA/train.jsonl COPA/val.jsonl --form superglue/copa --epochs 5
    python benchmarks/accuracy.py T5_FOLDER CB/train.jsonl CB/val.jsonl --form superglue/cb --sides modelzoo --max-new-tokens 8

Rows are shuffled once with seed 0, and cut into training and test rows where there is one file. Both sides: batch 16, AdamW with
weight decay 0.01 (not on biases and norms), linear schedule with 6 % warm-up, clipping at 1, evaluation after each epoch; the best
epoch counts. An encoder is fine-tuned as a classifier, or on choices where the form has them; a T5 or a GPT in the text form, which
the trainer's side here does not do. Every run is a fresh process; a line is printed as each one ends.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

BATCH, DECAY, WARMUP, CLIP = 16, 0.01, 0.06, 1.0
CHOICES = ("superglue/copa", "superglue/record")
WRITERS = {"t5": "seq2seq_lm", "mt5": "seq2seq_lm", "gpt2": "causal_lm", "llama": "causal_lm"}

Rows = list[dict[str, Any]]


def _split(options: argparse.Namespace) -> tuple[Rows, Rows]:
    files = [[json.loads(line) for line in file.read_text().splitlines()] for file in options.data]
    for rows in files:
        random.Random(0).shuffle(rows)
    rest = files[1] if len(files) > 1 else files[0][options.train :]
    return files[0][: options.train], rest[: options.test]


def _task(options: argparse.Namespace) -> str:
    kind = json.loads((options.folder / "config.json").read_text())["model_type"]
    return WRITERS.get(kind, "multiple_choice" if options.form in CHOICES else "classification")


def _modelzoo(options: argparse.Namespace) -> list[dict[str, float]]:
    from modelzoo.config import change_settings
    from modelzoo.training import train

    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, rows in zip(("train", "validation"), _split(options), strict=True):
            files[name] = str(Path(folder) / f"{name}.jsonl")
            Path(files[name]).write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = change_settings(
            None,
            {
                "model": {"name": options.folder.resolve(), "task": _task(options)},
                "data": {**files, "form": options.form, "max_length": options.limit, "truncation": options.truncation},
                "train": {"batch_size": BATCH, "epochs": options.epochs, "seed": options.seed, "clip_norm": CLIP},
                "optimizer": {"lr": options.lr, "weight_decay": DECAY},
                "schedule": {"warmup": WARMUP},
                "evaluation": {"metric": "accuracy", "max_new_tokens": options.max_new_tokens},
                "checkpoint": {"every": None, "keep_best": False},
                "output": {"folder": f"{folder}/runs"},
            },
        )
        result = train(settings)
        lines = [json.loads(line) for line in (Path(result.folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["evaluation"] for line in lines if "evaluation" in line]


def _rows_of_task(options: argparse.Namespace) -> tuple[Rows, Rows]:
    """Return the rows with the columns that the task looks for."""
    from modelzoo.data.published import published_rows
    from modelzoo.data.tasks import find_columns

    found = []
    for rows in _split(options):
        if options.form:
            found.append(published_rows(rows, options.form, _task(options)))
            continue
        columns = find_columns(rows, _task(options))
        found.append([{role: row[column] for role, column in columns.items()} for row in rows])
    return found[0], found[1]


def _trainer(options: argparse.Namespace) -> list[dict[str, float]]:
    import numpy as np
    import transformers

    task, rows = _task(options), _rows_of_task(options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    names = sorted({str(row["label"]) for row in rows[0]})

    def encode(some: Rows) -> Rows:
        if task == "multiple_choice":
            each = [tokenizer([row["prompt"]] * len(row["choices"]), row["choices"], max_length=options.limit) for row in some]
            return [{**one, "labels": row["label"]} for one, row in zip(each, some, strict=True)]
        firsts, seconds = ([row.get(role, "") for row in some] for role in ("text_a", "text_b"))
        encoded = tokenizer(firsts, seconds if any(seconds) else None, truncation=options.truncation, max_length=options.limit)
        labels = [names.index(str(row["label"])) for row in some]
        return [{**{key: encoded[key][i] for key in encoded}, "labels": labels[i]} for i in range(len(some))]

    train, test = (encode(some) for some in rows)
    transformers.set_seed(options.seed)
    if task == "multiple_choice":
        model = transformers.AutoModelForMultipleChoice.from_pretrained(options.folder)
        collator: Any = transformers.DataCollatorForMultipleChoice(tokenizer)
    else:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(options.folder, num_labels=len(names))
        collator = transformers.DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            num_train_epochs=options.epochs,
            learning_rate=options.lr,
            weight_decay=DECAY,
            lr_scheduler_type="linear",
            warmup_steps=round(WARMUP * options.epochs * -(-len(train) // BATCH)),
            max_grad_norm=CLIP,
            seed=options.seed,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=train,
            eval_dataset=test,
            data_collator=collator,
            compute_metrics=lambda found: {"accuracy": float((np.argmax(found[0], axis=1) == found[1]).mean())},
        )
        trainer.train()
    return [{"accuracy": entry["eval_accuracy"]} for entry in trainer.state.log_history if "eval_accuracy" in entry]


SIDES = {"modelzoo": _modelzoo, "trainer": _trainer}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path, nargs="+", help="training rows, and test rows in a file of their own")
    parser.add_argument("--form", help="published form of the rows, as superglue/cb")
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--limit", type=int, default=256, help="tokens of the longest item")
    parser.add_argument("--truncation", default="longest_first", help="which text is cut")
    parser.add_argument("--max-new-tokens", type=int, help="judge a T5 or a GPT by what it writes, not by its likeliest choice")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _main() -> None:
    options = _options()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    labels = Counter(str(row.get("label", row.get("answer"))) for row in _split(options)[1])
    print(f"majority of the {labels.total()} test rows: {max(labels.values()) / labels.total():.4f}", flush=True)
    best: dict[str, list[float]] = {side: [] for side in options.sides}
    for seed in options.seeds:
        for side in options.sides:
            start = time.perf_counter()
            command = [sys.executable, *sys.argv, "--side", side, "--seed", str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{side} with seed {seed} failed:\n{done.stderr[-4000:]}")
            epochs = json.loads(done.stdout.splitlines()[-1])
            values = [epoch["accuracy"] for epoch in epochs]
            best[side].append(max(values))
            shown = " ".join(f"{value:.4f}" for value in values)
            more = "".join(f"  {name} {max(epoch[name] for epoch in epochs):.4f}" for name in ("f1",) if name in epochs[0])
            print(f"{side:<9} seed {seed}  after each epoch {shown}{more}  ({time.perf_counter() - start:.0f} s)", flush=True)
    for side, values in best.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{side:<9} best epoch: mean {statistics.mean(values):.4f}, standard deviation {spread:.4f}, seeds {options.seeds}")


if __name__ == "__main__":
    _main()
