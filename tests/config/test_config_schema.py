"""The schema: every key explained, defaults equal to the reference's, periods, no heavy imports."""

import dataclasses
import subprocess
import sys

import pytest
from pydantic import ValidationError

from modelzoo.config import METRICS, RunSettings, period_in_steps
from modelzoo.config.advice import ADVICE
from modelzoo.config.aliases import short_names, translate
from modelzoo.config.keys import Key, list_keys, section_of

KEYS = list(list_keys(RunSettings))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_key_is_explained(key: object) -> None:
    assert key.meaning.endswith(".")
    assert key.expects


@pytest.mark.parametrize("section", [field.annotation for field in RunSettings.model_fields.values() if section_of(field)])
def test_what_stands_beside_a_field_is_what_is_said_of_it(section: type) -> None:
    """Also where the field's type brings facts of its own."""
    written = section.__annotations__
    for name, field in section.model_fields.items():
        own = [item for item in getattr(written[name], "__metadata__", ()) if isinstance(item, Key)]
        if own:
            (found,) = [
                key for key in KEYS if key.path.rpartition(".")[2] == name and key.meaning == " ".join(field.description.split())
            ]
            assert (found.aliases, found.unit) == (own[-1].aliases, own[-1].unit)
            assert own[-1].expects in (None, found.expects)


def test_every_training_argument_is_understood_or_answered() -> None:
    from transformers import TrainingArguments

    unknown = [field.name for field in dataclasses.fields(TrainingArguments) if translate(field.name, 1) is None]
    assert not unknown


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("hub_model_id", "use `modelzoo push RUN USER/NAME`"),
        ("fsdp_config", "parallel.zero"),
        ("deepspeed", "memory"),
        ("dataloader_num_workers", "remove it"),
        ("use_dora", "adapter.method=dora"),
        ("load_in_4bit", "adapter.base=nf4"),
        ("attn_implementation", "remove it"),
        ("dataset", "data.name"),
        ("overwrite_output_dir", "nothing is ever overwritten"),
    ],
)
def test_names_of_other_tools_are_answered(name: str, advice: str) -> None:
    found = translate(name, 1)
    assert found is not None
    assert advice in (found.advice or "")


def test_there_are_few_enough_keys_for_one_page() -> None:
    assert len(KEYS) <= 80


def test_no_alias_is_a_key_of_another_meaning() -> None:
    names = short_names()
    for key in KEYS:
        for alias in key.aliases:
            assert names[alias] == [key.path]
            assert alias not in ADVICE


def test_defaults_are_those_of_the_reference(tmp_path_factory: pytest.TempPathFactory) -> None:
    from transformers import TrainingArguments

    theirs = TrainingArguments(output_dir=str(tmp_path_factory.mktemp("out")))
    ours = {key.path: key.default for key in KEYS}
    assert ours["optimizer.lr"] == theirs.learning_rate
    assert ours["optimizer.betas"] == (theirs.adam_beta1, theirs.adam_beta2)
    assert ours["optimizer.eps"] == theirs.adam_epsilon
    assert ours["train.epochs"] == theirs.num_train_epochs
    assert ours["train.clip_norm"] == theirs.max_grad_norm
    assert ours["train.seed"] == theirs.seed
    assert ours["schedule.name"] == theirs.lr_scheduler_type


@pytest.mark.parametrize("task", METRICS)
def test_each_task_has_its_own_metric(task: str) -> None:
    settings = RunSettings.model_validate({"recipe": "a", "model": {"name": "m", "task": task}, "data": {"name": "d"}})
    assert settings.metric == METRICS[task][0]


def test_no_data_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"data\.name and data\.train are both missing"):
        RunSettings.model_validate({"recipe": "a", "model": {"name": "m"}})


@pytest.mark.parametrize(("period", "steps"), [("1ep", 10), ("0.5ep", 5), (".25ep", 3), ("0.001ep", 1), (7, 7), (None, None)])
def test_periods_become_steps(period: int | str | None, steps: int | None) -> None:
    assert period_in_steps(period, 10) == steps


@pytest.mark.parametrize("period", ["ep", "0ep", "1 ep", "-1ep", 0, -3, True, "5"])
def test_what_is_no_period_is_refused(period: int | str) -> None:
    with pytest.raises(ValueError, match="expected an integer >= 1"):
        period_in_steps(period, 10)


def test_settings_import_nothing_heavy() -> None:
    code = "import sys, modelzoo.config; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "transformers", "datasets", "numpy", "rich"):
        assert repr(heavy) not in loaded
