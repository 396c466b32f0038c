"""Choosing: metrics against values worked out by hand, likelihoods against a loop, runs against transformers and on two ranks."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import run_distributed
from published_examples import OFFICIAL
from safetensors.torch import load_file
from tiny_language_runs import gpt2_folder, t5_folder
from tiny_runs import model_folder, rows, settings_for, write_rows

import modelzoo
from modelzoo.config import RunSettings
from modelzoo.data import load_tokenizer
from modelzoo.data.tasks import Recipe
from modelzoo.data.tasks.choices import ChoiceRow
from modelzoo.errors import ConfigError, DataError
from modelzoo.report import read_records
from modelzoo.runtime import connect
from modelzoo.training import SilentProgress, evaluate, predict, train
from modelzoo.training.evaluation.choosing import ChoosingSet, choice_metrics, choosing_set, likeliest, written_choice
from modelzoo.training.limits import limits_of

Row = dict[str, Any]


def row(label: int, names: tuple[str, ...] = ("no", "yes"), group: str | None = None, answers: tuple[str, ...] = ()) -> ChoiceRow:
    return ChoiceRow(prompt="p", choices=names, label=label, names=names, answers=answers, group=group)


def test_two_fixed_choices_have_accuracy_and_the_f1_of_the_second() -> None:
    values = choice_metrics([row(1), row(1), row(0), row(0), row(1)], [1, 0, 1, 0, -1])
    assert values == {"accuracy": 2 / 5, "f1": pytest.approx(2 * 1 / (3 + 2))}


def test_more_choices_have_the_mean_f1() -> None:
    names = ("a", "b", "c")
    values = choice_metrics([row(0, names), row(0, names), row(1, names), row(2, names)], [0, 1, 1, 0])
    assert values["accuracy"] == 2 / 4
    assert values["f1"] == pytest.approx((2 * 1 / (2 + 2) + 2 * 1 / (1 + 2) + 0) / 3)


def test_answers_of_a_question_are_right_together_or_not() -> None:
    some = [row(1, group="1.1"), row(0, group="1.1"), row(1, group="1.2"), row(0, group="2.1")]
    values = choice_metrics(some, [1, 0, 0, 0])
    assert values["exact_match"] == pytest.approx(2 / 3)
    assert values["accuracy"] == 3 / 4
    assert values["f1"] == pytest.approx(2 * 1 / (2 + 1))


def test_names_are_compared_with_all_answers() -> None:
    some = [
        row(0, ("Puerto Rico", "Bo"), answers=("Puerto Rico", "the island")),
        row(1, ("New York City", "New York"), answers=("New York",)),
    ]
    assert choice_metrics(some, [0, 0]) == {"accuracy": 0.5, "exact_match": 0.5, "f1": pytest.approx((1 + 2 * 2 / 5) / 2)}
    # what was written counts by its own words
    written = choice_metrics(some, [-1, 1], ["The Island!", "New York"])
    assert written == {"accuracy": 0.5, "exact_match": 1.0, "f1": 1.0}


def test_what_is_written_is_mapped_back_to_a_choice() -> None:
    some = row(0, ("True", "true", "Not true"))
    assert [written_choice(text, some) for text in ("true", " True", "TRUE.", "not True", "perhaps", "")] == [1, 0, 0, 2, -1, -1]


def choosing(folder: Path, some: list[Row], task: str, **limits: int) -> tuple[Any, ChoosingSet]:
    model = modelzoo.from_pretrained(folder, dtype="float32")
    recipe = Recipe(task=task, tokenizer=load_tokenizer(folder), max_length=64)
    limits = {"batch_tokens": 8192} | limits
    made = choosing_set(some, recipe, limits_of(model), vocab_size=model.config.vocab_size, **limits)
    assert made is not None
    return model, made


CHOICES: list[Row] = [
    {"prompt": "who sat on the mat", "choices": [" the red cat", " the dog", " no"], "label": 0},
    {"prompt": "what is red", "choices": [" blue", " the mat is not fast"], "label": 1},
    {"prompt": "the dog", "choices": [" ran", " is on the mat", " sat fast"], "label": 2},
]


def test_likelihoods_are_those_of_transformers_whatever_the_batch(tmp_path: Path) -> None:
    import transformers

    folder = gpt2_folder(tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    model, samples = choosing(folder, CHOICES, "causal_lm")
    tokenizer = load_tokenizer(folder)
    with connect() as world:
        together = likeliest(model, samples, world)
        alone = likeliest(model, choosing(folder, CHOICES, "causal_lm", batch_tokens=1)[1], world)
    for number, some in enumerate(CHOICES):
        wanted = []
        for choice in some["choices"]:
            start = len(tokenizer.encode([some["prompt"]])[0].input_ids)
            ids = torch.tensor([[*tokenizer.encode([some["prompt"] + choice])[0].input_ids, tokenizer.eos_id]])
            scores = theirs(ids).logits[0].log_softmax(-1)
            wanted.append(sum(float(scores[place - 1, ids[0, place]]) for place in range(start, ids.shape[1])))
        assert together[number][1] == pytest.approx(wanted, abs=1e-5)
        assert alone[number][1] == pytest.approx(wanted, abs=1e-5)
        assert together[number][0] == wanted.index(max(wanted))


def test_likelihoods_of_an_encoder_decoder_are_those_of_transformers(tmp_path: Path) -> None:
    import transformers

    folder = t5_folder(tmp_path)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    some = [{"source": each["prompt"], "choices": [choice.strip() for choice in each["choices"]], "label": 0} for each in CHOICES]
    model, samples = choosing(folder, some, "seq2seq_lm")
    tokenizer = load_tokenizer(folder)
    with connect() as world:
        found = likeliest(model, samples, world)
    for number, each in enumerate(some):
        for place, choice in enumerate(each["choices"]):
            ids, labels = (torch.tensor([tokenizer.encode([text])[0].input_ids]) for text in (each["source"], choice))
            loss = float(theirs(input_ids=ids, labels=labels).loss.detach())
            assert found[number][1][place] == pytest.approx(-loss * labels.shape[1], abs=1e-4)


def run_settings(folder: str, name: str, **changes: Any) -> RunSettings:
    """A run that chooses between BERT's texts, made for COPA's form."""
    place = Path(folder)
    if not (place / "copa.jsonl").exists():
        words = rows(12, seed=3, longest=6)
        made = [
            {
                "premise": each["passage"],
                "choice1": each["question"],
                "choice2": "the cat ran",
                "question": ("cause", "effect")[n % 2],
            }
            for n, each in enumerate(words)
        ]
        write_rows(place / "copa.jsonl", [{**each, "label": n % 2} for n, each in enumerate(made)])
    file = str(place / "copa.jsonl")
    values = {"model__task": "multiple_choice", "data__train": file, "data__validation": file, "data__form": "superglue/copa"}
    values |= {
        "train__micro_batch_size": 2,
        "train__epochs": 1.0,
        "model__dropout": 0.0,
        "optimizer__lr": 1e-4,
        "output__name": name,
    }
    return settings_for(place, **(values | changes))


def start(folder: str, name: str) -> None:
    train(run_settings(folder, name), progress=SilentProgress())


def test_two_ranks_choose_as_one_process_does(tmp_path: Path) -> None:
    start(str(tmp_path), "one")
    run_distributed(start, 2, str(tmp_path), "two")
    one, two = tmp_path / "runs" / "one-001", tmp_path / "runs" / "two-001"
    for ours, theirs in zip(read_records(two / "metrics.jsonl"), read_records(one / "metrics.jsonl"), strict=True):
        for key in set(theirs) - {"seconds"}:
            assert ours[key] == pytest.approx(theirs[key], abs=1e-6), key
    for name, tensor in load_file(one / "final/model.safetensors").items():
        # the same is added to all scores of a row: its gradient is rounding, of which Adam makes steps
        tolerance = 1e-3 if name == "classifier.bias" else 1e-6
        torch.testing.assert_close(load_file(two / "final/model.safetensors")[name], tensor, rtol=0, atol=tolerance)


def test_a_step_of_choices_is_that_of_transformers(tmp_path: Path) -> None:
    import transformers

    from modelzoo.training.preparation import prepare

    settings = run_settings(
        str(tmp_path), "one", train__max_steps=3, train__clip_norm=None, optimizer__weight_decay=0.0, schedule__name="constant"
    )
    settings = settings.model_copy(update={"schedule": settings.schedule.model_copy(update={"warmup": 0})})
    prepared = prepare(settings)
    torch.manual_seed(settings.train.seed)
    start_folder = tmp_path / "start"
    from modelzoo.runtime import seed_everything

    seed_everything(settings.train.seed)
    prepared.pretrained.load(None).save_pretrained(start_folder)
    theirs = transformers.BertForMultipleChoice.from_pretrained(start_folder).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, weight_decay=0.0)
    from modelzoo.data import BatchStream, collate

    losses = []
    stream = BatchStream(prepared.train.lengths, batch_size=4, seed=settings.train.seed)
    for _ in range(3):
        batch = collate([prepared.train.item(index) for index in next(stream)], prepared.train.pad_id)
        loss = theirs(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    result = train(settings, progress=SilentProgress())
    records = [record["loss"] for record in read_records(Path(result.folder) / "metrics.jsonl") if "loss" in record]
    assert records == pytest.approx(losses, abs=1e-5)


def test_a_classifier_judges_the_answers_of_a_question_together(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "multirc.jsonl", OFFICIAL["multirc"])
    changes = {"data__train": str(file), "data__validation": str(file), "data__form": "superglue/multirc", "train__epochs": 1.0}
    result = train(settings_for(tmp_path, **changes), progress=SilentProgress())
    labels = {"4.7": ["true", "false"], "4.8": ["true"], "5.9": ["false"]}
    found = [each["label"] for each in predict(result.folder, OFFICIAL["multirc"])]
    groups = {"4.7": found[:2], "4.8": found[2:3], "5.9": found[3:]}
    wanted = sum(groups[group] == labels[group] for group in labels) / 3
    assert evaluate(result.folder, OFFICIAL["multirc"])["exact_match"] == pytest.approx(wanted)


@pytest.mark.parametrize("writes", [False, True])
def test_a_decoder_learns_to_choose(writes: bool, tmp_path: Path) -> None:
    gpt2_folder(tmp_path / "model")
    some = [
        {"prompt": f"is the {thing}", "choices": [" red", " blue"], "label": number % 2}
        for number, thing in enumerate(["cat", "dog"] * 8)
    ]
    file = str(write_rows(tmp_path / "choices.jsonl", some))
    values: dict[str, Any] = {
        "recipe": "choose",
        "model": {"name": str(tmp_path / "model"), "task": "causal_lm"},
        "data": {"train": file, "validation": file, "max_length": 32},
        "train": {"epochs": 40.0, "batch_size": 8, "seed": 1},
        "optimizer": {"lr": 1e-2},
        "evaluation": {"metric": "accuracy", "every": None, "max_new_tokens": 3 if writes else None},
        "output": {"folder": str(tmp_path / "runs")},
    }
    result = train(RunSettings.model_validate(values), progress=SilentProgress())
    assert result.best_metric == 1.0
    asked = [{key: each[key] for key in ("prompt", "choices")} for each in some[:3]]
    found = predict(result.folder, asked)
    assert [each["text"].strip() if writes else each["choice"] for each in found] == ["red", "blue", "red"]
    assert evaluate(result.folder)["accuracy"] == 1.0


def test_a_metric_that_the_rows_do_not_have_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"copa\.jsonl: evaluation\.metric=exact_match: these rows with choices have accuracy, loss"
    ):
        train(run_settings(str(tmp_path), "one", evaluation__metric="exact_match"), progress=SilentProgress())
    assert not (tmp_path / "runs").exists()


def test_columns_beside_a_form_are_refused(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    with pytest.raises((ConfigError, ValueError), match=r"data\.columns has no effect with data\.form=superglue/copa"):
        run_settings(str(tmp_path), "one", data__columns={"prompt": "premise"})


def test_predictions_of_choices_have_probabilities(tmp_path: Path) -> None:
    start(str(tmp_path), "one")
    asked = [json.loads(line) for line in (tmp_path / "copa.jsonl").read_text().splitlines()][:2]
    for each, found in zip(asked, predict(tmp_path / "runs" / "one-001", asked), strict=True):
        assert math.isclose(sum(found["probabilities"]), 1, abs_tol=1e-6)
        assert found["choice"] == each[f"choice{found['label'] + 1}"]
