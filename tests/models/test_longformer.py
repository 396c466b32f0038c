from pathlib import Path

import pytest
import torch
import transformers

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import KeyValueCache, Layout
from modelzoo.models.longformer import Longformer, LongformerConfig
from modelzoo.models.longformer_attention import LongformerAttention

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 140,
    "attention_window": 8,
    "pad_token_id": 1,
    "sep_token_id": 2,
}


def pair(task: str, folder: Path, **options: object) -> tuple[Longformer, torch.nn.Module]:
    torch.manual_seed(0)
    theirs = getattr(transformers, f"Longformer{task}")(transformers.LongformerConfig(**SIZES | options)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    theirs.save_pretrained(folder)
    model = modelzoo.from_pretrained(folder)
    assert isinstance(model, Longformer)
    return model, theirs


def ids(rows: int, width: int) -> torch.Tensor:
    return torch.randint(3, 40, (rows, width), generator=torch.Generator().manual_seed(0))


def test_the_defaults_are_those_of_transformers() -> None:
    read = converter_for("longformer").read_config(transformers.LongformerConfig().to_dict())
    assert LongformerConfig().values() == LongformerConfig(**read | {"label_names": None}).values()


@pytest.mark.parametrize("width", [1, 7, 8, 33, 130])
@pytest.mark.parametrize("window", [4, 8, 64])
def test_texts_of_any_length_equal_transformers(width: int, window: int, tmp_path: Path) -> None:
    ours, theirs = pair("Model", tmp_path, attention_window=window)
    tokens, flags = ids(2, width), torch.zeros(2, width, dtype=torch.long)
    assert torch.allclose(ours(tokens).last_hidden_state, theirs(tokens).last_hidden_state, atol=1e-5)
    flags[0, width // 2] = 1
    found = ours(tokens, global_attention_mask=flags)
    expected = theirs(tokens, global_attention_mask=flags)
    assert torch.allclose(found.last_hidden_state, expected.last_hidden_state, atol=1e-5)
    assert torch.allclose(found.pooler_output, expected.pooler_output, atol=1e-5)


def test_a_classifier_lets_the_first_token_see_all(tmp_path: Path) -> None:
    ours, theirs = pair("ForSequenceClassification", tmp_path)
    tokens, mask = ids(3, 50), torch.ones(3, 50, dtype=torch.long)
    mask[1, 30:] = 0
    expected = theirs(tokens.where(mask.bool(), torch.tensor(1)), mask).logits
    assert torch.allclose(ours(tokens, mask).logits, expected, atol=1e-5)
    assert not torch.allclose(ours(tokens, mask, global_attention_mask=torch.zeros_like(mask)).logits, expected, atol=1e-3)
    left = torch.cat([torch.ones(1, 20, dtype=torch.long), tokens[1:2, :30]], 1)
    assert torch.allclose(ours(left, (left != 1).long()).logits, expected[1:2], atol=1e-5)


def test_a_question_sees_all_of_its_text(tmp_path: Path) -> None:
    ours, theirs = pair("ForQuestionAnswering", tmp_path)
    tokens = ids(2, 40)
    for row, places in enumerate(([6, 7, 39], [10, 11, 39])):
        tokens[row, places] = 2
    found, expected = ours(tokens), theirs(tokens)
    assert torch.allclose(found.start_logits, expected.start_logits, atol=1e-5)
    assert torch.allclose(found.end_logits, expected.end_logits, atol=1e-5)


def test_a_question_without_an_end_is_refused(tmp_path: Path) -> None:
    ours, _ = pair("ForQuestionAnswering", tmp_path)
    tokens = ids(2, 20)
    tokens[0, 4] = 2
    with pytest.raises(DataError, match="input_ids: row 1 has no sep_token_id=2 to end its question"):
        ours(tokens)
    assert ours(tokens, global_attention_mask=torch.ones_like(tokens)).start_logits is not None
    with pytest.raises(DataError, match=r"global_attention_mask must have the shape of input_ids, \(2, 20\), found \(2, 19\)"):
        ours(tokens, global_attention_mask=torch.ones(2, 19))
    values = ours.config.values() | {"sep_token_id": None}
    with pytest.raises(DataError, match="sep_token_id=None: the end of a question is not known; give global_attention_mask"):
        Longformer.from_config(LongformerConfig(**values), "question_answering")(tokens)


def test_global_tokens_have_maps_of_their_own() -> None:
    torch.manual_seed(0)
    layer = LongformerAttention(12, 3, window=3)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    hidden, flags = torch.randn(30, 12), torch.zeros(30, dtype=torch.long)
    flags[[0, 13]] = 1
    layout = Layout.packed(torch.ones(1, 30), is_global=flags.unsqueeze(0))
    expected = []
    for token in range(30):
        is_global = bool(flags[token])
        maps = [getattr(layer, f"global_{name}") if is_global else getattr(layer.local, name) for name in ("query", "key", "value")]
        seen = [key for key in range(30) if is_global or abs(key - token) < 3 or flags[key]]
        q, k, v = maps[0](hidden[token]), maps[1](hidden[seen]), maps[2](hidden[seen])
        heads = [torch.softmax(k[:, part] @ q[part] / 2, 0) @ v[:, part] for part in (slice(0, 4), slice(4, 8), slice(8, 12))]
        expected.append(layer.local.output(torch.cat(heads)))
    assert torch.allclose(layer(hidden, layout), torch.stack(expected), atol=1e-5)


def test_a_cache_is_refused() -> None:
    layer, layout = LongformerAttention(12, 3, window=3), Layout.packed(torch.ones(1, 4))
    with pytest.raises(ConfigError, match="a Longformer is an encoder and has no cache; leave the cache out"):
        layer(torch.zeros(4, 12), layout, cache=KeyValueCache(1, 3, 4, 4))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ([8], r"attention_window: expected a number or a list of 2, found \[8\]"),
        (7, "attention_window: expected even numbers from 2, found 7"),
        ([8, 0], "attention_window: expected even numbers from 2, found 0"),
        ("8", "attention_window: expected even numbers from 2, found '8'"),
        (None, "attention_window: expected even numbers from 2, found None"),
    ],
)
def test_a_strange_window_is_refused(stated: object, message: str) -> None:
    source = transformers.LongformerConfig(**SIZES).to_dict() | {"attention_window": stated}
    with pytest.raises(ConfigError, match=message):
        converter_for("longformer").read_config(source)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_window": (8, 8)}, "attention_window: 2 windows were given for num_layers=12; give one a layer"),
        ({"attention_window": 7}, "attention_window=7 must be even and at least 2"),
        ({"attention_window": 0}, "attention_window=0 must be even and at least 2"),
        ({"sep_token_id": 30522}, "sep_token_id=30522 is not below vocab_size=30522"),
    ],
)
def test_an_impossible_longformer_field_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LongformerConfig(**fields)  # type: ignore[arg-type]  # wrong on purpose


def test_windows_that_differ_are_written_as_a_list() -> None:
    values = LongformerConfig(num_layers=2, attention_window=(8, 16)).values()
    written = converter_for("longformer").write_config(values, None, "base", torch.float32)
    assert written["attention_window"] == [8, 16]
    assert converter_for("longformer").read_config(written)["attention_window"] == (8, 16)
