"""Every recipe takes two steps on a tiny model with rows of its form, is evaluated, and its result predicts."""

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_examples import OFFICIAL
from tiny_cpm_folders import cpm1_folder, cpm2_folder
from tiny_images import image_folder, vit_folder
from tiny_language_runs import gpt2_folder, pair_rows, sentences, t5_folder, write_rows
from tiny_runs import model_folder, rows

from modelzoo.config import load_settings
from modelzoo.config.recipes import recipe_names
from modelzoo.data.published import published_rows
from modelzoo.training import SilentProgress, evaluate, predict, train


def texts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"text": text} for text in sentences(count, seed, longest=30)]


def instructions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"instruction": text, "input": "", "output": text.split()[-1]} for text in sentences(count, seed, longest=4)]


def questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """SQuAD's form."""
    made = []
    for row in pair_rows(count, seed):
        answers = {"text": [row["target"]], "answer_start": [row["source"].index(row["target"])]}
        made.append({"id": "1", "question": "what is on", "context": row["source"], "answers": answers})
    return made


def superglue(name: str) -> Callable[..., list[dict[str, Any]]]:
    """Rows of a data set of SuperGLUE, as the official files have them."""
    return lambda count, seed=0: (OFFICIAL[name] * count)[seed : count + seed]


def long_gpt2(folder: Path) -> Path:
    return gpt2_folder(folder, max_positions=256)


CASES: dict[str, tuple[Callable[[Path], Path], Callable[..., list[dict[str, Any]]], dict[str, object]]] = {
    "bert-boolq": (model_folder, rows, {}),
    "bert-pretrain": (model_folder, texts, {}),
    "gpt2-text": (gpt2_folder, texts, {}),
    # the tiny tokenizer has no tokens of chatml
    "llama-chat": (gpt2_folder, instructions, {"data.template": "plain"}),
    "llama-lora": (gpt2_folder, instructions, {"data.template": "plain", "adapter.r": 2}),
    "t5-pretrain": (t5_folder, texts, {}),
    "t5-text-to-text": (t5_folder, questions, {}),
}


def words(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [
        {"tokens": text.split(), "ner_tags": ["B-ANIMAL" if word in ("cat", "dog") else "O" for word in text.split()]}
        for text in sentences(count, seed)
    ]


def pairs_of_questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """LCQMC's form."""
    found = [("今天天气好吗", "今天天气", 1), ("你吃了吗", "天气好吗", 0), ("你好吗", "你好", 1)]
    return [{"sentence1": a, "sentence2": b, "label": label} for a, b, label in (found * count)[seed : count + seed]]


def chinese(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"text": "今天天气很好。你吃了吗。" * (1 + number % 2)} for number in range(count)]


def images(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Paths of images, dark ones and bright ones."""
    folder = image_folder(Path(tempfile.mkdtemp()), count, seed)
    return [
        {"image": str(folder / name / f"{number}.png"), "label": name} for number in range(count) for name in ("dark", "bright")
    ][:count]


def predicted(rows_given: list[dict[str, Any]], form: str | None, task: str) -> int:
    return len(rows_given) if form is None else len(published_rows(rows_given, form, task))


CASES |= {
    "bert-sst2": (
        model_folder,
        lambda count, seed=0: [{"sentence": r["passage"], "label": int(r["label"])} for r in rows(count, seed)],
        {},
    ),
    "text-classification": (
        model_folder,
        lambda count, seed=0: [{"text": r["passage"], "label": r["label"]} for r in rows(count, seed)],
        {},
    ),
    "token-classification": (model_folder, words, {}),
    "vit-images": (vit_folder, images, {}),
    "bert-squad": (model_folder, questions, {}),
    "cpm1-lcqmc": (cpm1_folder, pairs_of_questions, {}),
    "cpm1-pretrain": (cpm1_folder, chinese, {}),
    "cpm2-lcqmc": (cpm2_folder, pairs_of_questions, {}),
    "cpm2-pretrain": (cpm2_folder, chinese, {}),
}
for data_set in OFFICIAL:
    CASES.setdefault(f"bert-{data_set}", (model_folder, superglue(data_set), {}))
    CASES[f"gpt2-{data_set}"] = (long_gpt2, superglue(data_set), {"data.max_length": 200})
    CASES[f"t5-{data_set}"] = (t5_folder, superglue(data_set), {})


@pytest.mark.parametrize("name", [name for name in recipe_names() if name != "demo"])
def test_a_recipe_takes_two_steps(name: str, tmp_path: Path) -> None:
    assert name in CASES, f"{name} is a new recipe: say here which tiny model and rows it takes"
    make_model, make_rows, changes = CASES[name]
    if name.startswith("cpm"):
        pytest.importorskip("jieba", reason="jieba is not installed: pip install 'modelzoo-hub[cpm]'")
    make_model(tmp_path / "model")
    write_rows(tmp_path / "train.jsonl", make_rows(8))
    write_rows(tmp_path / "validation.jsonl", make_rows(3, seed=1))
    files = {f"data.{split}": str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")}
    sizes = {"data.max_length": 48, "train.max_steps": 2}
    given = load_settings(name)
    small = {"train.batch_tokens": 60} if given.train.batch_tokens else {"train.batch_size": 3}
    settings = load_settings(
        name, {"model.name": str(tmp_path / "model"), **files, **sizes, **small, "output.folder": str(tmp_path / "runs"), **changes}
    )
    result = train(settings, progress=SilentProgress())
    assert (result.stopped, result.step) == ("finished", 2)
    assert math.isfinite(result.history[-1][settings.metric])
    assert evaluate(result.folder)["loss"] == pytest.approx(result.history[-1]["loss"], abs=1e-5)
    asked = [json.loads(line) for line in (tmp_path / "validation.jsonl").open()]
    writes = settings.model.task in ("causal_lm", "seq2seq_lm")
    form = settings.data.form
    found = predict(result.folder, asked, max_new_tokens=2 if writes and form is None else None)
    assert len(found) == predicted(asked, form, settings.model.task)
