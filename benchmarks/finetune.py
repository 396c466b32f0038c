"""Fine-tuning speed on BoolQ: modelzoo against transformers.Trainer (padded, and grouped by length) and bare matrix products.

    python benchmarks/finetune.py MODEL_FOLDER BOOLQ_JSONL [--steps 12] [--rounds 3]

All sides see the same rows, the same batch size and limit, AdamW, dropout as in the checkpoint, float32. The first step of each run
is left out. `gemm` runs nothing but the matrix products of the same steps, forward and backward, at the model's own shapes: its
time over ours is the share of the machine's matrix speed that training reaches. Work that ours leaves out (padding, and the last
layer's tokens that a classifier does not read) is left out there too.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import sides

LIMIT, SEED, LR = 256, 0, 2e-5


def _rows(options: argparse.Namespace) -> list[dict[str, object]]:
    import random

    rows = [json.loads(line) for line in options.data.read_text().splitlines()]
    random.Random(SEED).shuffle(rows)
    return rows[: options.steps * options.batch]


def _modelzoo(options: argparse.Namespace) -> sides.Figures:
    from modelzoo.config import load_settings
    from modelzoo.training import train

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in _rows(options)))
        settings = load_settings(
            "bert-boolq",
            [
                f"model={options.folder.resolve()}",
                f"data.train={data}",
                f"data.max_length={LIMIT}",
                f"train.batch_size={options.batch}",
                f"train.max_steps={options.steps}",
                f"optimizer.lr={LR}",
                "evaluation.every=null",
                "checkpoint.every=null",
                "checkpoint.keep_best=false",
                f"output.folder={folder}/runs",
            ],
        )
        result = train(settings)
        lines = [json.loads(line) for line in (Path(result.folder) / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    seconds = steps[-1]["seconds"] - steps[0]["seconds"]
    return {"examples_s": (len(steps) - 1) * options.batch / seconds, "seconds": seconds, "peak_mib": sides.peak_rss() / 2**20}


def _trainer(options: argparse.Namespace, *, is_grouped: bool) -> sides.Figures:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    rows = _rows(options)
    encoded = tokenizer(
        [row["question"] for row in rows], [row["passage"] for row in rows], truncation="only_second", max_length=LIMIT
    )
    data = [{**{key: encoded[key][i] for key in encoded}, "labels": int(bool(row["label"]))} for i, row in enumerate(rows)]
    model = transformers.BertForSequenceClassification.from_pretrained(options.folder, num_labels=2)
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            max_steps=options.steps,
            learning_rate=LR,
            seed=SEED,
            train_sampling_strategy="group_by_length" if is_grouped else "random",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        collator = transformers.DataCollatorWithPadding(tokenizer)
        transformers.Trainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=[Clock()]).train()
    seconds = times[-1] - times[0]
    return {"examples_s": (len(times) - 1) * options.batch / seconds, "seconds": seconds, "peak_mib": sides.peak_rss() / 2**20}


def _gemm(options: argparse.Namespace) -> sides.Figures:
    import torch

    from modelzoo.data import load_tokenizer

    tokenizer = load_tokenizer(options.folder)
    rows = _rows(options)
    encoded = tokenizer.encode(
        [str(row["question"]) for row in rows], [str(row["passage"]) for row in rows], max_length=LIMIT, truncation="only_second"
    )
    tokens = round(statistics.mean(len(one.input_ids) for one in encoded) * options.batch)
    config = json.loads((options.folder / "config.json").read_text())
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    square, up, down = (hidden, hidden), (hidden, inner), (inner, hidden)
    products = [(tokens, shape) for shape in [square] * 4 + [up, down]] * (layers - 1)
    products += [(tokens, square)] * 2 + [(options.batch, shape) for shape in (square, square, up, down)]
    weights = {shape: torch.randn(shape[1], shape[0]) for shape in (square, up, down)}
    inputs = {width: torch.randn(tokens, width) for width in (hidden, inner)}
    grads = {width: torch.randn(tokens, width) for width in (hidden, inner)}

    def step() -> None:
        for count, (n_in, n_out) in products:
            x, grad, weight = inputs[n_in][:count], grads[n_out][:count], weights[n_in, n_out]
            x @ weight.t()
            grad @ weight
            grad.t() @ x

    step()
    start = time.perf_counter()
    for _ in range(options.steps - 1):
        step()
    seconds = time.perf_counter() - start
    operations = sum(6 * count * n_in * n_out for count, (n_in, n_out) in products) * (options.steps - 1)
    return {"examples_s": (options.steps - 1) * options.batch / seconds, "seconds": seconds, "gflop_s": operations / seconds / 1e9}


def _padded(options: argparse.Namespace) -> sides.Figures:
    return _trainer(options, is_grouped=False)


def _grouped(options: argparse.Namespace) -> sides.Figures:
    return _trainer(options, is_grouped=True)


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    lines = [f"{name:<16} {sides.median(rounds, 'examples_s'):7.2f} examples/s" for name, rounds in figures.items()]
    return [
        *lines,
        f"modelzoo / Trainer, dynamic padding    {sides.ratio(figures, 'examples_s', 'modelzoo', 'trainer')}",
        f"modelzoo / Trainer, grouped by length  {sides.ratio(figures, 'examples_s', 'modelzoo', 'trainer-grouped')}",
        f"share of the matrix products' speed    {sides.ratio(figures, 'examples_s', 'modelzoo', 'gemm')}",
        f"peak memory, modelzoo / Trainer        {sides.ratio(figures, 'peak_mib', 'modelzoo', 'trainer')}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a BERT checkpoint with safetensors and tokenizer")
    parser.add_argument("data", type=Path, help="rows in BoolQ's jsonl form")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    named = {"modelzoo": _modelzoo, "trainer": _padded, "trainer-grouped": _grouped, "gemm": _gemm}
    sides.main(named, parser, _report)
