from pathlib import Path

import pytest
import torch
import transformers

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError
from modelzoo.models.electra import Electra, ElectraConfig

SIZES = {"vocab_size": 30, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def discriminator(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.ElectraConfig(**SIZES, intermediate_size=24, max_position_embeddings=12, num_labels=3)
    transformers.ElectraForPreTraining(config).save_pretrained(folder)
    return folder


def test_the_defaults_are_those_of_transformers() -> None:
    read = converter_for("electra").read_config(transformers.ElectraConfig().to_dict())
    assert ElectraConfig().values() == ElectraConfig(**read | {"label_names": None}).values()


def test_a_discriminator_without_a_task_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found ElectraForPreTraining. Say what the model is for: task= one of base, masked_lm"):
        modelzoo.from_pretrained(discriminator(tmp_path))


def test_a_discriminator_is_fine_tuned_and_its_own_head_left_out(tmp_path: Path) -> None:
    model = modelzoo.from_pretrained(discriminator(tmp_path), task="classification")
    assert isinstance(model, Electra)
    assert {name.split(".")[0] for name in model.load_report.new} == {"head"}
    ids = torch.tensor([[3, 4, 5]])
    theirs = transformers.ElectraModel.from_pretrained(tmp_path).eval()
    base = modelzoo.from_pretrained(tmp_path, task="base")
    assert torch.allclose(base(ids).last_hidden_state, theirs(ids).last_hidden_state, atol=1e-5)


def test_an_impossible_embedding_size_is_named() -> None:
    with pytest.raises(ConfigError, match="embedding_size=0 must be at least 1"):
        ElectraConfig(embedding_size=0)
