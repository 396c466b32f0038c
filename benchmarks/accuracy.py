"""Accuracy of a BERT fine-tuned on BoolQ: modelzoo beside transformers.Trainer, same rows, seeds and hyper-parameters.

    python benchmarks/accuracy.py MODEL_FOLDER BOOLQ_JSONL [--train 1200] [--test 400] [--epochs 2] [--seeds 0 1 2]

Rows are shuffled once with seed 0 and cut into training and test rows. Both sides: batch 16, AdamW with learning rate 5e-5 and
weight decay 0.01 (not on biases and norms), linear schedule with 6 % warm-up, clipping at 1, limit 256 tokens (the passage is cut),
evaluation after each epoch; the best epoch counts. Every run is a fresh process; a line is printed as each one ends.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH, LR, DECAY, WARMUP, CLIP, LIMIT = 16, 5e-5, 0.01, 0.06, 1.0, 256


def _split(options: argparse.Namespace) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    rows = [json.loads(line) for line in options.data.read_text().splitlines()]
    random.Random(0).shuffle(rows)
    return rows[: options.train], rows[options.train : options.train + options.test]


def _modelzoo(options: argparse.Namespace) -> list[float]:
    from modelzoo.config import load_settings
    from modelzoo.training import train

    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, rows in zip(("train", "validation"), _split(options), strict=True):
            files[name] = Path(folder) / f"{name}.jsonl"
            files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = load_settings(
            "bert-boolq",
            [
                f"model={options.folder.resolve()}",
                f"data.train={files['train']}",
                f"data.validation={files['validation']}",
                f"data.max_length={LIMIT}",
                f"train.batch_size={BATCH}",
                f"train.epochs={options.epochs}",
                f"train.seed={options.seed}",
                f"train.clip_norm={CLIP}",
                f"optimizer.lr={LR}",
                f"optimizer.weight_decay={DECAY}",
                f"schedule.warmup={WARMUP}",
                f"output.folder={folder}/runs",
            ],
        )
        result = train(settings)
        lines = [json.loads(line) for line in (Path(result.folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["evaluation"]["accuracy"] for line in lines if "evaluation" in line]


def _trainer(options: argparse.Namespace) -> list[float]:
    import numpy as np
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)

    def encode(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        encoded = tokenizer(
            [row["question"] for row in rows], [row["passage"] for row in rows], truncation="only_second", max_length=LIMIT
        )
        return [{**{key: encoded[key][i] for key in encoded}, "labels": int(bool(row["label"]))} for i, row in enumerate(rows)]

    train, test = (encode(rows) for rows in _split(options))
    transformers.set_seed(options.seed)
    model = transformers.BertForSequenceClassification.from_pretrained(options.folder, num_labels=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            num_train_epochs=options.epochs,
            learning_rate=LR,
            weight_decay=DECAY,
            lr_scheduler_type="linear",
            warmup_steps=round(WARMUP * options.epochs * -(-options.train // BATCH)),
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
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda found: {"accuracy": float((np.argmax(found[0], axis=1) == found[1]).mean())},
        )
        trainer.train()
    return [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]


SIDES = {"modelzoo": _modelzoo, "trainer": _trainer}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    labels = [bool(row["label"]) for row in _split(options)[1]]
    print(f"majority of the test rows: {max(statistics.mean(labels), 1 - statistics.mean(labels)):.4f}", flush=True)
    best: dict[str, list[float]] = {side: [] for side in SIDES}
    for seed in options.seeds:
        for side in SIDES:
            start = time.perf_counter()
            command = [sys.executable, *sys.argv, "--side", side, "--seed", str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{side} with seed {seed} failed:\n{done.stderr[-4000:]}")
            values = json.loads(done.stdout.splitlines()[-1])
            best[side].append(max(values))
            shown = " ".join(f"{value:.4f}" for value in values)
            print(f"{side:<9} seed {seed}  after each epoch {shown}  ({time.perf_counter() - start:.0f} s)", flush=True)
    for side, values in best.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{side:<9} best epoch: mean {statistics.mean(values):.4f}, standard deviation {spread:.4f}, seeds {options.seeds}")


if __name__ == "__main__":
    _main()
