"""Sizes that are not the weights' are found from the headers, before a model is built."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from modelzoo.converters import converter_for
from modelzoo.errors import CheckpointError
from modelzoo.hub import ModelFacts, check_sizes, read_config

pytest_plugins = ["tiny_folders"]

Folders = Callable[..., Path]


def check(folder: Path, task: str = "base", **fields: object) -> None:
    source = read_config(folder) | fields
    values = converter_for(source["model_type"]).read_config(source, task)
    check_sizes(folder, ModelFacts(source["model_type"], task, values, source, folder), allow_pickle=True)


@pytest.mark.parametrize(
    "name", ["BertModel", "BertForMaskedLM", "RobertaForSequenceClassification", "XLMRobertaForTokenClassification"]
)
def test_a_config_of_the_same_model_passes(hf_folder: Folders, name: str) -> None:
    folder = hf_folder(name)
    for task in ("base", "masked_lm", "classification", "token_classification", "question_answering"):
        check(folder, task)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "vocab_size",
            2**26,
            ["word_embeddings.weight: expected shape [67108864, 8]", "vocab_size=67108864", "found [20, 8]"],
        ),
        ("hidden_size", 2**17, ["word_embeddings.weight", "[20, 131072]", "found [20, 8]", "query.weight"]),
        ("max_position_embeddings", 512, ["position_embeddings.weight: expected shape [512, 8]", "max_positions=512", "[18, 8]"]),
        ("type_vocab_size", 1, ["token_type_embeddings.weight: expected shape [1, 8]", "type_vocab_size=1", "[2, 8]"]),
        ("intermediate_size", 32, ["intermediate.dense.weight: expected shape [32, 8]", "intermediate_size=32", "[16, 8]"]),
        ("num_hidden_layers", 4096, ["config.json: expected 2 layers, as the weights have, found num_layers=4096"]),
        ("num_hidden_layers", 1, ["expected 2 layers", "num_layers=1"]),
    ],
    ids=range(7),
)
def test_sizes_of_another_model_are_named_in_milliseconds(hf_folder: Folders, field: str, value: int, words: list[str]) -> None:
    folder = hf_folder("BertModel")
    started = time.perf_counter()
    with pytest.raises(CheckpointError) as error:
        check(folder, **{field: value})
    assert time.perf_counter() - started < 1
    assert all(word in str(error.value) for word in (str(folder), *words)), str(error.value)


def test_real_checkpoints_pass(testdata: Path, minilm: Path) -> None:
    folders = [path.parent for path in testdata.glob("checkpoints*/*/config.json")]
    known = [
        folder for folder in folders if json.loads((folder / "config.json").read_text()).get("model_type") in ("bert", "roberta")
    ]
    assert len(known) >= 9
    for folder in (*known, minilm):
        check(folder)
