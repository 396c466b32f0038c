import math
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from tiny_runs import WORDS, model_folder, rows

from modelzoo.config.parallel import ParallelConfig
from modelzoo.data import build_dataset, load_tokenizer
from modelzoo.errors import CheckpointError, ConfigError, DataError, InputError
from modelzoo.models.bert import Bert
from modelzoo.runtime import connect, prepare
from modelzoo.training import EvaluationSet, SilentProgress, evaluate, measure, predict, train
from modelzoo.training.evaluation.spans import best_spans, better_span

TASKS = ("classification", "token_classification", "question_answering", "masked_lm")


def task_rows(task, count=9):
    made = []
    for row in rows(count, longest=30):
        words = row["passage"].split()
        if task == "token_classification":
            made.append({"tokens": words, "tags": ["B-X" if word in ("cat", "dog") else "O" for word in words]})
        elif task == "question_answering":
            answers = {"text": [words[1]], "answer_start": [len(words[0]) + 1]}
            made.append({"question": row["question"], "context": row["passage"], "answers": answers})
        elif task == "masked_lm":
            made.append({"text": row["passage"]})
        else:
            made.append(row)
    return made


def make(folder, task, count=9, max_length=24):
    names = {"classification": ["false", "true"], "token_classification": ["O", "B-X"]}.get(task)
    torch.manual_seed(1)
    model = Bert.from_pretrained(folder, task=task, **({"label_names": names} if names else {}))
    some = task_rows(task, count)
    dataset = build_dataset(some, task=task, tokenizer=load_tokenizer(folder), label_names=names, max_length=max_length)
    vocab_size = model.config.vocab_size if task == "masked_lm" else None
    return model, EvaluationSet("validation", dataset, some, {}, 50, vocab_size)


def naive_loss(model, samples):
    """The mean over all targets, one sample a forward."""
    total = count = 0.0
    for index in range(len(samples.dataset)):
        item = {name: torch.tensor([value]) for name, value in samples.dataset.item(index).items()}
        targets = samples.dataset.num_targets(index)
        if targets:
            total += float(model(**item).loss.detach()) * targets
            count += targets
    return total / count


@pytest.mark.parametrize("task", TASKS)
def test_loss_is_the_mean_over_all_targets_of_all_samples(tmp_path, task):
    model, samples = make(model_folder(tmp_path / "model"), task)
    with connect(device="cpu") as world:
        values = measure(model, samples, world)
    assert values["loss"] == pytest.approx(naive_loss(model, samples), rel=1e-5)
    if task == "masked_lm":
        assert values["perplexity"] == pytest.approx(math.exp(values["loss"]))


def test_evaluation_draws_no_random_number_and_keeps_the_mode(tmp_path):
    model, samples = make(model_folder(tmp_path / "model"), "classification")
    model.train()
    state = torch.get_rng_state()
    with connect(device="cpu") as world:
        assert measure(model, samples, world) == measure(model, samples, world)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def on_ranks(folder: str, task: str, count: int) -> None:
    model, samples = make(Path(folder), task, count)
    with connect(device="cpu") as world:
        expected = measure(model, samples, world.__class__(0, 1, 0, world.device, 1))
        for options in ({}, {"zero": 0}, {"zero": 3}, {"tensor": 2}):
            laid_out = prepare(make(Path(folder), task, count)[0], world, ParallelConfig(**options))
            values = measure(laid_out, samples, world)
            assert world.gather(values) == [values] * world.world_size
            assert values == pytest.approx(expected, abs=1e-6), options
            world.tensor_size = 1


@pytest.mark.parametrize(("task", "count"), [("classification", 1), ("question_answering", 5), ("masked_lm", 9)])
def test_ranks_count_every_sample_once_also_with_a_batch_for_one_of_them(tmp_path, task, count):
    model_folder(tmp_path / "model")
    run_distributed(on_ranks, 2, str(tmp_path / "model"), task, count)


def test_answers_of_long_contexts_are_the_best_of_all_windows(tmp_path):
    model, samples = make(model_folder(tmp_path / "model"), "question_answering", max_length=16)
    assert len(samples.dataset) > len(samples.rows)
    with connect(device="cpu") as world:
        values = measure(model, samples, world)
    right = 0.0
    tokenizer = load_tokenizer(tmp_path / "model")
    for row in samples.rows:
        best = (-math.inf, "")
        for window in tokenizer.windows([row["question"]], [row["context"]], max_length=16, stride=4):
            output = model(torch.tensor([window.input_ids]), token_type_ids=torch.tensor([window.token_type_ids]))
            for start, from_ in enumerate(window.sequence_ids):
                for end in range(start, len(window.input_ids)):
                    if from_ == 1 and window.sequence_ids[end] == 1:
                        score = float(output.start_logits[0, start].detach() + output.end_logits[0, end].detach())
                        text = row["context"][window.offsets[start][0] : window.offsets[end][1]]
                        best = max(best, (score, text), key=lambda pair: pair[0])
        right += best[1] == row["answers"]["text"][0]
    assert values["exact_match"] == pytest.approx(right / len(samples.rows))


def test_no_answer_wins_only_if_it_wins_in_every_window():
    starts = torch.tensor([[5.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    first, second = best_spans(starts, starts, [[None, (0, 3), (4, 6)], [None, (7, 9), None]])
    assert (first.score, first.start, first.end, first.null_score) == (2.0, 0, 3, 10.0)
    assert first.text("cat sat on", may_be_empty=True) == ""
    both = better_span(first, second)
    assert (both.null_score, both.text("cat sat on", may_be_empty=True)) == (0.0, "cat")


def test_predictions_come_in_the_order_of_the_rows_and_agree_with_evaluation(tmp_path):
    model, samples = make(model_folder(tmp_path / "model"), "classification", 30)
    found = predict(model, samples.rows, batch_tokens=40)
    labels = ["false", "true"]
    for index, prediction in enumerate(found):
        item = {name: torch.tensor([value]) for name, value in samples.dataset.item(index).items() if name != "labels"}
        shares = model(**item).logits[0].softmax(-1).tolist()
        assert prediction["probabilities"] == pytest.approx(dict(zip(labels, shares, strict=True)), abs=1e-5)
        assert prediction["label"] == labels[shares.index(max(shares))]
    right = sum(found[i]["label"] == str(row["label"]).lower() for i, row in enumerate(samples.rows)) / 30
    values = evaluate(model, samples.rows, max_length=24)
    assert values["accuracy"] == pytest.approx(right)
    assert values["majority"] == pytest.approx(
        max(sum(row["label"] for row in samples.rows), sum(not row["label"] for row in samples.rows)) / 30
    )


def test_predictions_need_no_labels(tmp_path):
    model, samples = make(model_folder(tmp_path / "model"), "classification")
    bare = [{"question": row["question"], "passage": row["passage"]} for row in samples.rows]
    assert predict(model, bare) == predict(model, samples.rows)


def test_words_get_a_label_each_and_none_where_they_were_cut(tmp_path):
    model, samples = make(model_folder(tmp_path / "model"), "token_classification")
    bare = [{"tokens": row["tokens"]} for row in samples.rows]
    for row, prediction in zip(bare, predict(model, bare, max_length=12), strict=True):
        assert prediction["words"] == row["tokens"]
        kept = min(len(row["tokens"]), 10)
        assert len(prediction["labels"]) == len(row["tokens"])
        assert all(label in ("O", "B-X") for label in prediction["labels"][:kept])
        assert prediction["labels"][kept:] == [None] * (len(row["tokens"]) - kept)


def test_questions_get_an_answer_from_their_context(tmp_path):
    model, samples = make(model_folder(tmp_path / "model"), "question_answering")
    bare = [{"question": row["question"], "context": row["context"]} for row in samples.rows]
    for row, prediction in zip(bare, predict(model, bare, max_length=16), strict=True):
        assert prediction["answer"] in row["context"]
        assert math.isfinite(prediction["score"])


def test_masks_are_filled_with_the_likeliest_tokens(tmp_path):
    model, _ = make(model_folder(tmp_path / "model"), "masked_lm")
    first, second = predict(model, [{"text": "the [MASK] sat on [MASK]"}, {"text": "the cat"}])
    assert [len(mask) for mask in first["masks"]] == [5, 5]
    tokenizer = load_tokenizer(tmp_path / "model")
    ids = tokenizer.encode(["the [MASK] sat on [MASK]"])[0].input_ids
    shares = model(torch.tensor([ids])).logits[0, 2].softmax(-1)
    assert first["masks"][0][0]["probability"] == pytest.approx(float(shares.detach().max()), abs=1e-6)
    assert second == {"masks": []}
    assert {candidate["token"] for mask in first["masks"] for candidate in mask} <= {*WORDS, *tokenizer.get_vocab()}


def test_run_folder_is_evaluated_and_predicted_with_its_own_settings(tmp_path):
    from tiny_runs import settings_for

    result = train(settings_for(tmp_path), progress=SilentProgress())
    best = next(record for record in result.history if record["step"] == result.best_step)
    values = evaluate(result.folder)
    assert {name: values[name] for name in ("accuracy", "f1", "mcc")} == {name: best[name] for name in ("accuracy", "f1", "mcc")}
    assert values["loss"] == pytest.approx(best["loss"], abs=1e-6)
    assert values["majority"] == result.majority
    assert evaluate(result.final, tmp_path / "validation.jsonl")["accuracy"] == values["accuracy"]
    assert len(predict(result.folder, str(tmp_path / "validation.jsonl"))) == 9


def test_model_without_a_trained_head_is_refused(tmp_path):
    folder = model_folder(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"has no head for classification \(head.output.weight"):
        predict(folder, [{"text": "the cat"}], task="classification")


def test_model_of_no_task_is_refused(tmp_path):
    folder = model_folder(tmp_path / "model")
    with pytest.raises(ConfigError, match="task 'base': expected one of classification"):
        evaluate(Bert.from_pretrained(folder, task="base"), [{"text": "the cat"}])


def test_rows_are_needed_where_there_is_no_run(tmp_path):
    model, _ = make(model_folder(tmp_path / "model"), "classification")
    with pytest.raises(InputError, match="expected rows to evaluate on, found none"):
        evaluate(model)
    with pytest.raises(DataError, match="expected at least one row, found none"):
        predict(model, [])


def test_unfinished_run_is_refused(tmp_path):
    from tiny_runs import settings_for

    from modelzoo.training.run_directory import RunDirectory

    directory = RunDirectory.create(tmp_path / "runs", "tiny")
    with connect(device="cpu") as world:
        directory.describe(settings_for(tmp_path), {}, world)
    with pytest.raises(InputError, match=r"tiny-001: the run is not finished, .*modelzoo resume"):
        evaluate(directory.path)
