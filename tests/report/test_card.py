"""The model card: metadata that the hub's own reader takes, numbers of the run, no place of a machine, nothing invented."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from written_runs import HOSTILE, write_run

from modelzoo.report import read_run
from modelzoo.report.card import model_card, write_card
from modelzoo.report.serving import SERVERS, served_by


def result_folder(run: Path, *, source: str = "some/model", revision: str | None = "abc123", **config: object) -> Path:
    final = run / "final"
    final.mkdir()
    known = {"architectures": ["BertForSequenceClassification"], **config}
    (final / "config.json").write_text(json.dumps(known))
    (final / "modelzoo.json").write_text(json.dumps({"source": source, "revision": revision}))
    return final


def test_the_hub_reads_metrics_base_and_licence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001", data__name="super_glue/boolq", data__train=None, data__validation=None)
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    final = result_folder(run)
    write_card(read_run(run), final, base=base)
    card = ModelCard.load(final / "README.md")
    assert (card.data.base_model, card.data.license, card.data.pipeline_tag) == ("some/model", "apache-2.0", "text-classification")
    results = {result.metric_type: result for result in card.data.eval_results}
    assert results["accuracy"].metric_value == 0.9
    assert (results["accuracy"].dataset_type, results["accuracy"].dataset_config) == ("super_glue", "boolq")
    assert results["accuracy"].dataset_split == "validation"
    for part in ("at revision `abc123`", "of step 40, the best by accuracy", "AutoModelForSequenceClassification", "torch 2.13.0"):
        assert part in card.text
    assert "360 rows, 19,619 tokens, 36 rows truncated" in card.text
    assert not [path for path in final.iterdir() if path.name.startswith(".tmp")]


def test_a_set_with_its_config_is_named_by_both(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "tiny-001", data__name="Salesforce/wikitext:wikitext-2-raw-v1", data__train=None, data__validation=None
    )
    card = ModelCard(model_card(read_run(run), result_folder(run)))
    assert (card.data.eval_results[0].dataset_type, card.data.eval_results[0].dataset_config) == (
        "Salesforce/wikitext",
        "wikitext-2-raw-v1",
    )


def test_test_data_decide_what_is_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "test": {"accuracy": 0.81}}))
    text = model_card(read_run(run), result_folder(run))
    assert "| accuracy | test | 0.8100 |" in text
    assert "validation | 0.9" not in text


def test_a_local_base_is_no_hub_id_and_no_licence_is_made_up(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001", model__name=str(tmp_path / "my-model"), data__train=str(tmp_path / "t.jsonl"))
    final = result_folder(run, source="my-model", revision=None)
    text = model_card(read_run(run), final)
    assert "base_model" not in text
    assert "license" not in text.partition("# tiny-001")[0]
    assert "None" not in text
    assert "`my-model`, fine-tuned" in text
    assert str(tmp_path) not in text


def test_without_evaluations_the_card_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001", steps=5, data__validation=None)
    text = model_card(read_run(run), result_folder(run))
    assert "nothing was measured" in text
    assert "model-index" not in text


def test_last_weights_are_called_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001", checkpoint__keep_best=False)
    assert "those of the last step, 40" in model_card(read_run(run), result_folder(run))


def test_an_adapter_is_loaded_with_peft(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001", model__task="causal_lm")
    final = result_folder(run)
    (final / "adapter_config.json").write_text("{}")
    text = model_card(read_run(run), final)
    assert "library_name: peft" in text
    assert "from peft import AutoPeftModelForCausalLM" in text


def test_a_hostile_name_stays_a_value(tmp_path: Path) -> None:
    run = write_run(tmp_path / "tiny-001", description=f"{HOSTILE}\n---\nlicense: mit")
    card = ModelCard(model_card(read_run(run), result_folder(run)))
    assert card.data.license is None


@pytest.mark.parametrize(
    ("architecture", "taken"),
    [
        ("GPT2LMHeadModel", [True, True, True]),
        ("T5ForConditionalGeneration", [True, False, True]),
        ("CpmAntForCausalLM", [True, False, False]),
        ("CPM3ForCausalLM", [False, False, False]),
        ("BertForTokenClassification", [True, True, False]),
    ],
)
def test_which_programs_take_a_checkpoint(architecture: str, taken: list[bool]) -> None:
    assert [served_by(architecture)[server] is not None for server in SERVERS] == taken


def test_transformers_has_every_class_that_is_said_to_load_there() -> None:
    import transformers

    from modelzoo.converters import converter_for
    from modelzoo.models.auto import FAMILIES

    for family in FAMILIES:
        for architecture in converter_for(family).architectures.values():
            assert (served_by(architecture)["transformers"] is not None) == hasattr(transformers, architecture), architecture
