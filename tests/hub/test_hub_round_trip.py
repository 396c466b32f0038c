"""transformers -> ours -> transformers: tensors, key set and config are equal, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modelzoo.hub import open_checkpoint
from modelzoo.models.bert import Bert
from modelzoo.models.roberta import Roberta

pytest_plugins = ["tiny_folders"]

Folders = Callable[..., Path]
TASKS = ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]


def equal_folders(first: Path, second: Path, *, left_out: str = "\0") -> None:
    """Compare config, keys and values; keys of the first that end in `left_out` are not expected in the second."""
    assert json.loads((second / "config.json").read_text()) == json.loads((first / "config.json").read_text())
    with open_checkpoint(first, allow_pickle=True) as one, open_checkpoint(second) as two:
        renamed = {
            key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): key
            for key in one.tensors
            if not key.endswith(left_out)
        }
        assert renamed.keys() == two.tensors.keys()
        for key in two.tensors:
            assert one.tensors[renamed[key]].dtype == two.tensors[key].dtype
            assert torch.equal(one.read(renamed[key]), two.read(key)), key


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta"])
@pytest.mark.parametrize("shard", ["1GB", "1KB"])
def test_every_task_of_every_family_comes_back_equal(
    hf_folder: Folders, tmp_path: Path, family: str, task: str, shard: str
) -> None:
    import modelzoo

    folder = hf_folder(f"{family}{task}", shard=shard)
    model = modelzoo.from_pretrained(folder)
    assert model.load_report.new == ()
    saved = model.save_pretrained(tmp_path / "out")
    equal_folders(folder, saved)
    if shard == "1GB":
        assert (saved / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
        assert (saved / "config.json").read_bytes() == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_an_untied_head_comes_back_and_transformers_takes_it_strictly(hf_folder: Folders, tmp_path: Path, family: str) -> None:
    import transformers

    name = f"{family}ForMaskedLM"
    folder = hf_folder(name, tie_word_embeddings=False)
    unused = "cls.predictions.bias" if family == "Bert" else "lm_head.bias"
    saved = (Bert if family == "Bert" else Roberta).from_pretrained(folder).save_pretrained(tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(saved / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before if key != unused)
    ids = torch.arange(2, 12).unsqueeze(0)
    one, two = (getattr(transformers, name).from_pretrained(path).eval() for path in (folder, saved))
    assert torch.equal(one(ids).logits, two(ids).logits)


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_prefixes_and_old_names_end_in_todays_names(hf_folder: Folders, tmp_path: Path, family: str) -> None:
    from safetensors.torch import save_file

    folder = hf_folder(f"{family}Model")
    reference = load_file(folder / "model.safetensors")
    family_class = Bert if family == "Bert" else Roberta
    prefixed = {f"{family.lower()}.{key}": value for key, value in reference.items()}
    save_file(prefixed, folder / "model.safetensors")
    saved = family_class.from_pretrained(folder).save_pretrained(tmp_path / "out")
    assert load_file(saved / "model.safetensors").keys() == reference.keys()


@pytest.mark.parametrize(("source", "task"), [("Model", "ForSequenceClassification"), ("ForMaskedLM", "ForQuestionAnswering")])
def test_a_model_with_a_new_head_is_taken_strictly_by_transformers(
    hf_folder: Folders, tmp_path: Path, source: str, task: str
) -> None:
    import transformers

    folder = hf_folder(f"Bert{source}")
    name = {"ForSequenceClassification": "classification", "ForQuestionAnswering": "question_answering"}[task]
    saved = Bert.from_pretrained(folder, task=name).save_pretrained(tmp_path / "out")
    model, info = getattr(transformers, f"Bert{task}").from_pretrained(saved, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.architectures == [f"Bert{task}"]


def test_labels_given_at_loading_are_in_the_saved_config(hf_folder: Folders, tmp_path: Path) -> None:
    import transformers

    folder = hf_folder(num_labels=6)
    model = Bert.from_pretrained(folder, label_names=["no", "yes", "maybe"])
    saved = model.save_pretrained(tmp_path / "out")
    reference = transformers.BertForSequenceClassification.from_pretrained(saved)
    assert reference.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert reference.config.label2id == {"no": 0, "yes": 1, "maybe": 2}
    assert reference.classifier.weight.shape == (3, 8)


REAL = [
    ("checkpoints/bert_ticket_classifier", "\0"),
    ("checkpoints/bert_xsmall_dummy", "\0"),
    ("checkpoints/camphr_ner_bert", "embeddings.position_ids"),
    ("checkpoints_made_here/roberta_mlm", "\0"),
    ("checkpoints_made_here/roberta_sst2", "\0"),
    ("checkpoints_made_here/ticket_fp16_safetensors", "\0"),
    ("checkpoints_made_here/ticket_legacy_gamma_beta_bin", "\0"),
    ("checkpoints_made_here/ticket_sharded_bin", "\0"),
    ("checkpoints_made_here/ticket_sharded_safetensors", "\0"),
]


@pytest.mark.parametrize(("name", "left_out"), REAL)
def test_a_real_checkpoint_comes_back_equal(testdata: Path, tmp_path: Path, name: str, left_out: str) -> None:
    import modelzoo

    model = modelzoo.from_pretrained(testdata / name, allow_pickle=True)
    assert model.load_report.new == ()
    equal_folders(testdata / name, model.save_pretrained(tmp_path / "out"), left_out=left_out)


def test_camphr_without_a_model_type_comes_back_with_one(testdata: Path, tmp_path: Path) -> None:
    """The family's own class takes it; the saved config has the field, without which nothing finds the family again."""
    source = testdata / "checkpoints" / "camphr_bert"
    model = Bert.from_pretrained(source, allow_pickle=True)
    assert model.config.vocab_size == 32006
    saved = model.save_pretrained(tmp_path / "out")
    config = json.loads((saved / "config.json").read_text())
    assert config.pop("model_type") == "bert"
    assert config == json.loads((source / "config.json").read_text())
    with open_checkpoint(source, allow_pickle=True) as one, open_checkpoint(saved) as two:
        assert one.tensors.keys() == two.tensors.keys()
        assert all(torch.equal(one.read(key), two.read(key)) for key in one.tensors)


def test_minilm_comes_back_equal(minilm: Path, tmp_path: Path) -> None:
    model = Bert.from_pretrained(minilm)
    assert model.load_report.new == ()
    equal_folders(minilm, model.save_pretrained(tmp_path / "out"), left_out="embeddings.position_ids")


def test_every_bert_and_roberta_folder_of_the_test_data_is_tried(testdata: Path) -> None:
    found = {
        f"{path.parent.parent.name}/{path.parent.name}"
        for path in testdata.glob("checkpoints*/*/config.json")
        if json.loads(path.read_text()).get("model_type", "bert") in ("bert", "roberta")
    }
    assert found == {name for name, _ in REAL} | {"checkpoints/camphr_bert"}
