import pytest
import torch
import transformers
from torch import nn

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.distilbert import DistilBert, DistilBertConfig
from modelzoo.models.heads import DenseHead

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24, "max_positions": 12}


def test_the_defaults_are_those_of_transformers() -> None:
    read = converter_for("distilbert").read_config(transformers.DistilBertConfig().to_dict())
    assert DistilBertConfig().values() == DistilBertConfig(**read | {"label_names": None}).values()


def test_sinusoidal_positions_start_as_transformers_do_and_are_trained() -> None:
    theirs = transformers.DistilBertModel(
        transformers.DistilBertConfig(vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=24, sinusoidal_pos_embds=True)
    )
    ours = DistilBert.from_config(DistilBertConfig(**{**SIZES, "max_positions": 512}, has_sinusoidal_positions=True))
    table = ours.get_parameter("embeddings.position.weight")
    assert torch.allclose(table, theirs.embeddings.position_embeddings.weight, atol=1e-6)
    assert table.requires_grad


def test_sinusoidal_positions_of_a_loaded_table_are_left_alone() -> None:
    model = DistilBert.from_config(DistilBertConfig(**SIZES, has_sinusoidal_positions=True))
    table = model.get_parameter("embeddings.position.weight")
    with torch.no_grad():
        table.fill_(7.0)
    model.init_weights(only=["head.output.weight"])
    assert bool((table == 7.0).all())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm_eps": 1e-5}, "norm_eps=1e-05: DistilBERT has 1e-12, and its config.json no field for another"),
        ({"classifier_dropout": None}, "classifier_dropout=None: DistilBERT's config.json takes a number alone"),
        ({"qa_dropout": 1.0}, "qa_dropout=1.0 must lie in 0 to 1"),
        ({"hidden_size": 15, "num_heads": 3, "has_sinusoidal_positions": True}, "hidden_size=15 must be even for sinusoidal"),
    ],
)
def test_an_impossible_distilbert_field_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistilBertConfig(**fields)  # type: ignore[arg-type]  # wrong on purpose


def test_token_types_are_no_argument() -> None:
    model = DistilBert.from_config(DistilBertConfig(**SIZES)).eval()
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(TypeError, match="token_type_ids"):
        model(ids, token_type_ids=ids)
    with pytest.raises(DataError, match=r"13 tokens, limit 12 \(12 positions\)"):
        model(torch.ones(1, 13, dtype=torch.long))


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
@pytest.mark.parametrize("drops_input", [True, False])
def test_a_dense_head_is_a_map_its_activation_and_a_map(name: str, drops_input: bool) -> None:
    head = DenseHead(8, 3, dropout=0.5, activation_name=name, drops_input=drops_input)
    hidden = torch.randn(4, 8)
    function = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}[name]
    expected = head.output(function(head.dense(hidden)))
    assert torch.allclose(head.eval()(hidden), expected)
    seen: list[torch.Tensor] = []
    head.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    head.train()(hidden)
    assert torch.equal(seen[0], hidden) != drops_input
