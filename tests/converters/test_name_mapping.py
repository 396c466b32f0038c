"""One table, both directions: names, placeholders, prefixes, old endings, second names."""

import time

import pytest
import torch

from modelzoo.converters import Ignore, Mapping, Prefix, Rule, Tied, modules
from modelzoo.converters.ops import Concat, Split, Stack, Transpose
from modelzoo.errors import CheckpointError

TABLE = Mapping(
    rules=(
        Rule("embed.weight", "net.embed.weight"),
        Rule(
            tuple(f"layers.{{layer}}.{name}.weight" for name in "qkv"),
            "net.block.{layer}.layer.0.qkv.weight",
            Split(3),
        ),
        *modules("layers.{layer}.up", "net.block.{layer}.layer.1.fc", Transpose()),
    ),
    prefix=Prefix("net.", ("embed", "block"), written=True),
    endings=(("Norm.gamma", "Norm.weight"),),
    ignore=(Ignore("net.position_ids", "a buffer"), Ignore("other.*", "another head")),
    tied=(Tied("head.weight", "net.embed.weight"),),
)


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    result = {"net.embed.weight": torch.randn(5, 4)}
    for layer in range(2):
        result[f"net.block.{layer}.layer.0.qkv.weight"] = torch.randn(12, 4)
        result[f"net.block.{layer}.layer.1.fc.weight"] = torch.randn(4, 4)
        result[f"net.block.{layer}.layer.1.fc.bias"] = torch.randn(4)
    return result


def test_there_and_back_keeps_names_and_bits() -> None:
    theirs = tensors()
    ours = TABLE.to_ours(theirs)
    assert sorted(name for name in ours if ".1." in name) == [
        "layers.1.k.weight",
        "layers.1.q.weight",
        "layers.1.up.bias",
        "layers.1.up.weight",
        "layers.1.v.weight",
    ]
    assert torch.equal(ours["layers.1.k.weight"], theirs["net.block.1.layer.0.qkv.weight"][4:8])
    assert torch.equal(ours["layers.0.up.weight"], theirs["net.block.0.layer.1.fc.weight"].t())
    back = TABLE.to_theirs(ours)
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[name], theirs[name]) for name in theirs)


def test_a_number_in_a_name_is_not_a_placeholder() -> None:
    assert TABLE.locate("net.block.0.layer.1.qkv.weight") is None
    assert TABLE.locate("net.block.7.layer.0.qkv.weight")[1] == {"layer": 7}
    assert TABLE.locate("net.block.07.layer.0.qkv.weight") is None


def test_expected_names_come_from_the_counts() -> None:
    groups = TABLE.expected({"layer": 2})
    assert {name for group in groups for name in group.theirs} == set(tensors())


def test_prefix_is_added_and_left_out() -> None:
    bare = {name.removeprefix("net."): tensor for name, tensor in tensors().items()}
    assert TABLE.to_ours(bare).keys() == TABLE.to_ours(tensors()).keys()
    without = Mapping(TABLE.rules, Prefix("net.", ("embed", "block"), written=False))
    assert without.to_theirs(TABLE.to_ours(bare)).keys() == bare.keys()


def test_old_endings_are_renamed_as_whole_components_only() -> None:
    assert TABLE.canonical("a.Norm.gamma") == "a.Norm.weight"
    assert TABLE.canonical("Norm.gamma") == "Norm.weight"
    for name in ("a.gamma", "a.MyNorm.gamma", "a.Norm.gamma_scale", "gamma", "a.Norm.gamma.weight"):
        assert TABLE.canonical(name) == name


def test_second_names_and_ignored_keys_are_left_out() -> None:
    more = tensors() | {"head.weight": torch.zeros(1), "net.position_ids": torch.zeros(1), "other.weight": torch.zeros(1)}
    assert TABLE.to_ours(more).keys() == TABLE.to_ours(tensors()).keys()


def test_a_written_second_name_is_a_copy() -> None:
    table = Mapping((Rule("bias", "head.bias"),), tied=(Tied("old.bias", "head.bias", written=True),))
    written = table.to_theirs({"bias": torch.arange(3.0)})
    assert sorted(written) == ["head.bias", "old.bias"]
    assert torch.equal(written["old.bias"], torch.arange(3.0))


def test_experts_are_stacked() -> None:
    table = Mapping((Rule("l.{layer}.experts", "m.{layer}.expert.{expert}.w", Stack(3), each=(("expert", 3),)),))
    theirs = {f"m.{layer}.expert.{expert}.w": torch.full((2,), 10.0 * layer + expert) for layer in range(2) for expert in range(3)}
    ours = table.to_ours(theirs)
    assert ours["l.1.experts"].tolist() == [[10, 10], [11, 11], [12, 12]]
    assert all(torch.equal(value, theirs[name]) for name, value in table.to_theirs(ours).items())
    assert table.locate("m.0.expert.3.w") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("net.block.1.layer.1.fc.bias"), None),
        (lambda t: t.update({"net.block.0.extra": torch.zeros(1)}), ["net.block.0.extra", "no rule"]),
        (lambda t: t.update({"net.block.-1.layer.1.fc.bias": torch.zeros(1)}), ["net.block.-1"]),
    ],
)
def test_unknown_names_are_refused(change, words: list[str] | None) -> None:
    theirs = tensors()
    change(theirs)
    if words is None:
        assert "layers.1.up.bias" not in TABLE.to_ours(theirs)
        return
    with pytest.raises(CheckpointError) as error:
        TABLE.to_ours(theirs)
    assert all(word in str(error.value) for word in words)


def test_a_rule_that_joins_needs_all_its_tensors() -> None:
    table = Mapping((Rule("qkv", ("q", "k", "v"), Concat(3)),))
    with pytest.raises(CheckpointError, match="v: expected, found nothing"):
        table.to_ours({"q": torch.zeros(1), "k": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"layers\.0\.k\.weight: expected beside layers\.0\.q\.weight"):
        TABLE.plan(["layers.0.q.weight", "layers.0.v.weight"])


def test_long_names_take_no_time() -> None:
    started = time.perf_counter()
    for name in ("net.block." + "1" * 100_000, "net.block.1" + ".layer" * 20_000, "a" * 100_000, "net.block.{layer}" * 5000):
        assert TABLE.locate(name) is None
    assert time.perf_counter() - started < 0.4
