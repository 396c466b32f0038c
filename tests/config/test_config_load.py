"""Loading of recipes: names, overrides, aliases, paths, and the error that lists everything."""

import re
from pathlib import Path

import pytest

from modelzoo.config import dump_settings, load_settings, recipe_names, recipe_path, resolve_settings
from modelzoo.errors import ConfigError


def write_recipe(folder: Path, text: str = "model: bert-base-uncased\ndata: {name: super_glue/boolq}\n") -> str:
    file = folder / "try.yaml"
    file.write_text(text)
    return str(file)


def problems_of(recipe: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(recipe, list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads_and_reads_back_equal(name: str, tmp_path: Path) -> None:
    mapping_file = recipe_path(name)
    text = mapping_file.read_text()
    assert text.startswith("#"), "a recipe says in its first lines what it does and how it is run"
    # The demo's model is trained by the project and may be absent from a bare checkout of the settings; give it places.
    for place in ("model", "data"):
        (tmp_path / place).mkdir()
    for file in ("train.jsonl", "validation.jsonl"):
        (tmp_path / "data" / file).touch()
    (tmp_path / "recipe.yaml").write_text(text)
    settings = load_settings(str(tmp_path))
    assert settings.recipe == name
    assert settings.description
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_settings(settings))
    assert load_settings(str(resolved)) == settings


def test_boolq_recipe_has_the_published_hyper_parameters() -> None:
    settings = load_settings("bert-boolq")
    assert (settings.model.name, settings.data.name) == ("bert-base-uncased", "super_glue/boolq")
    assert (settings.train.epochs, settings.train.batch_size, settings.optimizer.lr) == (5, 32, 2e-5)
    assert (settings.data.max_length, settings.data.truncation) == (256, "only_second")
    assert settings.checkpoint.keep_best


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer.lr=3e-5"],
        ["--optimizer.lr", "3e-5"],
        ["--optimizer.lr=3e-5"],
        ["optimizer={lr: 3e-5}"],
        ["lr=3e-5"],
        ["learning_rate=3e-5"],
        ["--learning-rate", "3e-5"],
    ],
)
def test_a_setting_is_typed_in_any_usual_form(words: list[str]) -> None:
    assert load_settings("bert-boolq", words).optimizer.lr == 3e-5


def test_model_alone_is_short_for_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings("bert-boolq", ["model=roberta-base"]).model.name == "roberta-base"
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_settings("bert-boolq", ["model=mine"]).model.name == str(tmp_path / "mine")
    assert load_settings(write_recipe(tmp_path)).model.name == "bert-base-uncased"


def test_paths_are_relative_to_where_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_folder, here = tmp_path / "recipe", tmp_path / "here"
    for folder in (recipe_folder, here):
        folder.mkdir()
        (folder / "rows.jsonl").touch()
    (recipe_folder / "model").mkdir()
    file = write_recipe(recipe_folder, "model: ./model\ndata: {train: rows.jsonl}\n")
    monkeypatch.chdir(here)
    settings = load_settings(file, ["data.validation=rows.jsonl"])
    assert settings.model.name == str(recipe_folder / "model")
    assert settings.data.train == str(recipe_folder / "rows.jsonl")
    assert settings.data.validation == str(here / "rows.jsonl")


def test_own_rows_replace_the_data_set_of_the_recipe(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    resolved = resolve_settings("bert-boolq", [f"data.train={rows}"])
    assert resolved.settings.data.name is None
    assert any("super_glue/boolq of the recipe gives way to data.train" in note for note in resolved.notes)


def test_batch_tokens_replace_the_batch_size_of_the_recipe() -> None:
    settings = load_settings("bert-boolq", ["train.batch_tokens=4096"])
    assert (settings.train.batch_size, settings.train.batch_tokens) == (None, 4096)
    message = problems_of("bert-boolq", "train.batch_tokens=4096", "train.batch_size=8")
    assert "batch_size=8 and batch_tokens=4096 exclude each other" in message


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("per_device_train_batch_size=8", "train.batch_size", 8),
        ("num_train_epochs=2", "train.epochs", 2),
        ("warmup_ratio=0.1", "schedule.warmup", 0.1),
        ("warmup_steps=10", "schedule.warmup", 10),
        ("weight_decay=0.1", "optimizer.weight_decay", 0.1),
        ("max_seq_length=64", "data.max_length", 64),
        ("evaluation_strategy=epoch", "evaluation.every", "1ep"),
        ("eval_strategy=no", "evaluation.every", None),
        ("save_strategy=no", "checkpoint.every", None),
        ("eval_steps=50", "evaluation.every", 50),
        ("max_grad_norm=0.5", "train.clip_norm", 0.5),
        ("lr_scheduler_type=cosine", "schedule.name", "cosine"),
        ("load_best_model_at_end=false", "checkpoint.keep_best", False),
        ("model_name_or_path=roberta-base", "model.name", "roberta-base"),
        ("epochs=2", "train.epochs", 2),
    ],
)
def test_hugging_face_names_are_translated_and_said(word: str, path: str, value: object) -> None:
    resolved = resolve_settings("bert-boolq", [word])
    section, key = path.split(".")
    assert getattr(getattr(resolved.settings, section), key) == value
    assert any(note.startswith(f"{word.partition('=')[0]} is read as {path}=") for note in resolved.notes)


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("lerning_rate=3e-5", "lerning_rate: is not known; did you mean optimizer.lr (Hugging Face: learning_rate)?"),
        ("epoch=2", "epoch: is not known; did you mean train.epochs?"),
        ("train.bacth_size=8", "train.bacth_size: is not known; did you mean train.batch_size?"),
        ("columns.text_a=question", "columns.text_a: is not known; did you mean data.columns.text_a?"),
        ("colums.label=x", "colums.label: is not known; did you mean data.columns.label?"),
        ("train.lr=1e-4", "train.lr: is not known; did you mean optimizer.lr?"),
        ("gradient_accumulation_steps=2", "train.micro_batch_size bounds one forward"),
        ("output_dir=x", "use output.folder=FOLDER"),
        ("evaluation_strategy=steps", "use evaluation.every=STEPS"),
        ("name=x", "could be model.name or data.name or schedule.name or output.name"),
        ("every=2", "could be evaluation.every or checkpoint.every"),
        ("train.epochs=0", "train.epochs: expected a number > 0 and <= 100000; found 0"),
        ("train.batch_size=2.5", "train.batch_size: expected an integer >= 1 or null; found 2.5"),
        ("optimizer.lr=true", "optimizer.lr: expected a number > 0 and <= 10; found true"),
        ("optimizer.lr=fast", "found 'fast'"),
        ("optimizer.lr=.nan", "optimizer.lr: expected a number > 0 and <= 10; found nan"),
        ("optimizer.betas=[0.9,1.0]", "expected a list of two numbers >= 0 and < 1; found [0.9, 1.0]"),
        ("schedule.warmup=1.5", "schedule.warmup: expected a fraction >= 0 and < 1, or whole steps; found 1.5"),
        (
            "evaluation.every=2epochs",
            "evaluation.every: expected an integer >= 1 (steps), a number of epochs as 1ep or 0.5ep, or null; found '2epochs'",
        ),
        (
            "evaluation.metric=perplexity",
            "evaluation.metric=perplexity is not a metric of model.task=classification; use accuracy or f1 or mcc or loss",
        ),
        (
            "model.task=translation",
            "one of classification, token_classification, question_answering, multiple_choice, masked_lm, "
            "causal_lm, seq2seq_lm; found 'translation'",
        ),
        ("data.label_names=[true,false]", "found true; put it in quotes"),
        ("output=3", "output: expected a mapping with folder, name, log_every_s, trackers; found 3"),
        ("output.name=../x", "output.name: expected a plain file name or null; found '../x'"),
        ("recipe=a/b", "recipe: expected a plain file name; found 'a/b'"),
        ("data.columns={text: [a", "put it in quotes"),
        ("oops", "oops: expected key=value"),
        ("--seed", "--seed: expected a value after it"),
        ("model=/no/such/folder", "model.name=/no/such/folder: there is no such folder"),
    ],
)
def test_one_wrong_setting_is_named_with_what_to_do(word: str, advice: str) -> None:
    message = problems_of("bert-boolq", word)
    assert advice in message
    assert message.startswith("1 setting of recipe bert-boolq cannot be used")


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "model: {task: nothing}\ndata: {nmae: x}\ntrain:\n  epochs: -1\n")
    message = problems_of(file, "lerning_rate=1", "train.bacth_size=8")
    assert message.startswith("6 settings of recipe ")
    for part in (
        "data.nmae: is not known; did you mean data.name? (try.yaml:2)",
        "train.epochs: expected a number > 0 and <= 100000; found -1 (try.yaml:4)",
        "model.name: is missing; expected text",
        "model.task: expected one of",
        "lerning_rate",
        "train.bacth_size",
    ):
        assert part in message


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    message = problems_of("bert-boolq", f"data.train={tmp_path}/trian.jsonl")
    assert f"did you mean {tmp_path}/train.jsonl?" in message


def test_contradicting_settings_of_one_source_are_refused(tmp_path: Path) -> None:
    assert "optimizer.lr: is set twice, to 1 and 2" in problems_of("bert-boolq", "learning_rate=1", "optimizer.lr=2")
    file = write_recipe(tmp_path, "model: a\ndata: {name: b}\nlearning_rate: 1e-5\noptimizer: {lr: 2e-5}\n")
    assert "optimizer.lr: is set twice, to 1e-05 and 2e-05 (try.yaml:4)" in problems_of(file)


def test_text_settings_keep_digits_as_they_are_typed() -> None:
    settings = load_settings("bert-boolq", ["output.name=007", "model.revision=1.10", "data.columns.text_a=question"])
    assert (settings.output.name, settings.model.revision, settings.data.columns) == ("007", "1.10", {"text_a": "question"})


def test_unknown_recipe_suggests_and_lists() -> None:
    assert "did you mean bert-boolq?" in problems_of("bert-boolk")
    assert "there are bert-boolq, bert-" in problems_of("xyz")
    assert "xyz.yaml does not exist" in problems_of("xyz.yaml")
    assert "expected a .yaml file, a folder that holds recipe.yaml, or a run" in problems_of("some/where")


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_names_a_model_that_can_be_on_the_hub_or_beside_it(name: str) -> None:
    model = load_settings(name).model.name
    assert Path(model).is_absolute() or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model), model


def test_a_folder_to_be_made_is_no_file_and_not_below_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        expected = f"memory.disk.path={tmp_path}/{place}: expected a folder, found the file {tmp_path}/file (the command line)"
        assert expected in problems_of("demo", f"memory.disk.path={tmp_path}/{place}")
    assert load_settings("demo", [f"memory.disk.path={tmp_path}/new/folder"])
