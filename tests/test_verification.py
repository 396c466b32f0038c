"""`verify`: equal where transformers and we agree, not equal where one weight differs; every head, both families."""

import json
from pathlib import Path

import pytest
import torch

import modelzoo.verification as verification
from modelzoo.errors import ConfigError
from modelzoo.verification import verify

HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def make_folder(folder: Path, name: str, *, seed: int = 0) -> Path:
    """A tiny random model of transformers, saved by transformers; its norms and biases are not the initial ones."""
    import transformers

    family = name.partition("For")[0].removesuffix("Model")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=24
    )
    torch.manual_seed(seed)
    model = getattr(transformers, name)(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("head", HEADS)
def test_outputs_and_gradients_are_transformers(family: str, head: str, tmp_path: Path) -> None:
    found = verify(make_folder(tmp_path / "model", family + head))
    assert found.is_equal, found
    assert found.is_strict, found
    assert found.reference == family + head
    assert found.num_parameters > 20
    assert found.outputs
    assert max(found.outputs.values()) > 0  # two programs of their own, not one compared with itself


@pytest.mark.parametrize(
    "name", ["bert.encoder.layer.1.attention.self.query.weight", "bert.embeddings.LayerNorm.bias", "classifier.weight"]
)
def test_one_wrong_weight_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = verification._reference

    def changed(*arguments: object) -> tuple[torch.nn.Module, tuple[str, ...], tuple[str, ...]]:
        theirs, missing, unexpected = reference(*arguments)
        parameter = theirs.get_parameter(name)
        parameter.data += 0.1 * torch.randn_like(parameter)
        return theirs, missing, unexpected

    monkeypatch.setattr(verification, "_reference", changed)
    found = verify(make_folder(tmp_path / "model", "BertForSequenceClassification"))
    assert not found.is_equal


def test_a_backward_that_differs_alone_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = verification._reference

    def changed(*arguments: object) -> tuple[torch.nn.Module, tuple[str, ...], tuple[str, ...]]:
        theirs, missing, unexpected = reference(*arguments)
        theirs.get_parameter("bert.pooler.dense.bias").register_hook(lambda gradient: gradient + 1)
        return theirs, missing, unexpected

    monkeypatch.setattr(verification, "_reference", changed)
    found = verify(make_folder(tmp_path / "model", "BertForSequenceClassification"))
    assert max(found.outputs.values()) <= 1e-5
    assert (found.is_equal, found.worst_parameter) == (False, "bert.pooler.dense.bias")


def test_an_output_that_is_no_number_is_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = verification._reference

    def changed(*arguments: object) -> tuple[torch.nn.Module, tuple[str, ...], tuple[str, ...]]:
        theirs, missing, unexpected = reference(*arguments)
        theirs.get_parameter("classifier.bias").data.fill_(float("nan"))
        return theirs, missing, unexpected

    monkeypatch.setattr(verification, "_reference", changed)
    assert not verify(make_folder(tmp_path / "model", "BertForSequenceClassification")).is_equal


def test_a_head_that_the_file_lacks_is_not_compared(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "BertModel")
    with pytest.raises(ConfigError, match="has no weights for task=classification"):
        verify(folder, task="classification")
    with pytest.raises(ConfigError, match="tolerance=0 must be above 0"):
        verify(folder, tolerance=0)


def test_a_pooler_that_the_file_lacks_is_left_out(tmp_path: Path) -> None:
    found = verify(make_folder(tmp_path / "model", "BertForTokenClassification"), task="base")
    assert set(found.outputs) == {"last_hidden_state"}
    assert found.missing == ("pooler.dense.bias", "pooler.dense.weight")
    assert found.unexpected == ("classifier.bias", "classifier.weight")
    assert not found.is_strict
    assert found.is_equal, found


def test_an_unusual_epsilon_and_one_token_type_are_compared(tmp_path: Path) -> None:
    import transformers

    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(max_position_embeddings=16, type_vocab_size=1, layer_norm_eps=1e-3, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["layer_norm_eps"] == 1e-3
    assert verify(tmp_path / "model").is_equal


def test_transformers_draws_no_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import transformers

    folder = make_folder(tmp_path / "model", "BertModel")
    transformers.utils.logging.enable_progress_bar()
    capfd.readouterr()
    verify(folder)
    assert "Loading weights" not in capfd.readouterr().err
    assert transformers.utils.logging.is_progress_bar_enabled()  # the user's own setting is as it was
