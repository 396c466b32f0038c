"""Sharded models: each rank reads its own part, all ranks raise together, and the saved file is that of one process."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from distributed import run_distributed
from safetensors.torch import load_file, save_file
from torch import nn

from modelzoo.converters import Mapping, Rule, modules
from modelzoo.converters.config_table import ConfigTable, Field, size
from modelzoo.converters.family import FamilyConverter
from modelzoo.converters.ops import Concat, RotaryPermute, Split, Transpose
from modelzoo.errors import CheckpointError, SaveError
from modelzoo.hub import ModelFacts, load_weights, save_pretrained
from modelzoo.models.bert import Bert

pytest_plugins = ["tiny_folders"]

Folders = Callable[..., Path]


def sharded(model: Bert, world_size: int) -> Bert:
    """Shard a model unit by unit, the rest (embeddings, head) as one group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    for unit in model.shard_units():
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def zeroed(folder: Path) -> Bert:
    """The folder's model with zeros for values."""
    model = Bert.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def load_then_save(folder: Path, out: Path) -> None:
    from modelzoo.runtime import connect, full_tensor

    model = zeroed(folder)
    expected = dict(Bert.from_pretrained(folder).named_parameters())
    with connect(device="cpu") as world:
        sharded(model, world.world_size)
        report = load_weights(model, folder, model.facts())
        total = sum(parameter.nbytes for parameter in expected.values())
        assert 0 < report.size_bytes < total
        assert report.loaded == len(expected)
        for name, parameter in model.named_parameters():
            assert torch.equal(full_tensor(parameter.detach()), expected[name].detach()), name
        with torch.no_grad():  # the last group stays gathered after a forward: saving must not take stale values
            model(torch.arange(6).unsqueeze(0))
        assert save_pretrained(model, out, model.facts()) == out
        save_pretrained(model, out.with_name("shards"), model.facts(), max_shard_size=1000)


@pytest.mark.parametrize(("name", "world_size"), [("BertForSequenceClassification", 2), ("BertForMaskedLM", 3)])
def test_ranks_read_their_parts_and_save_one_file(hf_folder: Folders, tmp_path: Path, name: str, world_size: int) -> None:
    folder = hf_folder(name)
    run_distributed(load_then_save, world_size, folder, tmp_path / "out")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / file).read_bytes() == (folder / file).read_bytes()
    parts: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "shards").glob("*.safetensors"):
        parts |= load_file(path)
    whole = load_file(folder / "model.safetensors")
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[key], whole[key]) for key in whole)


def load_broken(folder: Path, words: list[str]) -> None:
    from modelzoo.runtime import connect

    model = Bert.from_pretrained(folder.with_name("hf"))
    facts = model.facts()
    with connect(device="cpu") as world:
        sharded(model, world.world_size)
        with pytest.raises(CheckpointError) as error:
            load_weights(model, folder, facts)
        assert all(word in str(error.value) for word in words), str(error.value)
        world.barrier()


def test_what_one_rank_finds_all_ranks_raise(hf_folder: Folders, tmp_path: Path) -> None:
    folder = hf_folder()
    tensors = load_file(folder / "model.safetensors")
    key = "bert.embeddings.word_embeddings.weight"
    tensors[key][19, 3] = float("nan")  # a row of the last rank
    (tmp_path / "nan").mkdir()
    save_file(tensors, tmp_path / "nan" / "model.safetensors")
    run_distributed(load_broken, 2, tmp_path / "nan", [key, "NaN or infinity in 1 of"])
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-4])
    run_distributed(load_broken, 2, tmp_path / "cut", ["model.safetensors", "cut short"])


def save_fails(folder: Path, used: Path) -> None:
    from modelzoo.hub import save as save_module
    from modelzoo.runtime import connect

    def fail_midway(path: Path, tensors: object, values: object) -> None:
        next(values)
        raise OSError(28, "No space left on device")

    model = Bert.from_pretrained(folder)
    facts = model.facts()
    with connect(device="cpu") as world:
        sharded(model, world.world_size)
        with pytest.raises(SaveError, match="expected an empty folder or nothing, found notes"):
            save_pretrained(model, used, facts)
        save_module.write_safetensors = fail_midway
        with pytest.raises(SaveError, match="No space left on device"):
            save_pretrained(model, used.with_name("fresh"), facts)
        world.barrier()


def test_a_save_that_fails_on_the_first_rank_fails_on_all(hf_folder: Folders, tmp_path: Path) -> None:
    folder = hf_folder()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes").write_text("x")
    run_distributed(save_fails, 2, folder, tmp_path / "used")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "used"]


def plain_save(folder: Path, out: Path) -> None:
    from modelzoo.runtime import connect

    model = Bert.from_pretrained(folder)
    with connect(device="cpu") as world:
        save_pretrained(model, out, model.facts())
        world.barrier()
        assert (out / "model.safetensors").exists()


def test_of_a_plain_model_the_first_rank_writes(hf_folder: Folders, tmp_path: Path) -> None:
    run_distributed(plain_save, 2, hf_folder(), tmp_path / "out")


TABLE = Mapping(
    (
        *modules("up", "net.fc", Transpose()),
        Rule(("q", "k"), "net.qk", Split(2)),
        Rule("joined", ("net.a", "net.b"), Concat((3, 4))),
        Rule("turned", "net.turned", RotaryPermute(2, "half_split")),
    )
)
FAMILY = FamilyConverter(
    model_type="tiny",
    table=ConfigTable((Field("width", "width", 6, size(100)),)),
    architectures={"base": "TinyModel"},
    mappings=lambda *_: TABLE,
    counts={},
)


class TinyModel(nn.Module):
    """Every operation of the engine, with sizes that the ranks do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 5)
        for name, shape in (("q", (5, 3)), ("k", (5, 3)), ("joined", (7, 2)), ("turned", (8, 3))):
            setattr(self, name, nn.Parameter(torch.zeros(shape)))


def operations_sharded(folder: Path, out: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from modelzoo.converters import registry
    from modelzoo.runtime import connect

    registry._CONVERTERS["tiny"] = FAMILY
    facts = ModelFacts("tiny", "base", {"width": 6})
    stored = load_file(folder / "model.safetensors")
    expected = TABLE.to_ours(stored)
    with connect(device="cpu") as world:
        mesh = init_device_mesh("cpu", (world.world_size,))
        for dim in (0, 1, None):
            model = TinyModel()
            for name, parameter in list(model.named_parameters()):
                place = Replicate() if dim is None else Shard(min(dim, parameter.ndim - 1))
                path, _, attribute = name.rpartition(".")
                placed = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [place]))
                setattr(model.get_submodule(path), attribute, placed)
            load_weights(model, folder, facts)
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter.detach().full_tensor(), expected[name]), (name, dim)
            parts = {name: parameter.detach() for name, parameter in model.named_parameters() if name != "turned"}
            for key, value in TABLE.to_theirs(parts).items():
                assert torch.equal(value.full_tensor(), stored[key]), (key, dim)
            save_pretrained(model, out.with_name(f"out{dim}"), facts)
        with pytest.raises(CheckpointError, match="joined: expected memory to load into, found a sharded parameter on meta"):
            load_weights(model.to("meta"), folder, facts)


def test_every_operation_is_loaded_and_saved_sharded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = {
        "net.fc.weight": (6, 5),
        "net.fc.bias": (5,),
        "net.qk": (10, 3),
        "net.a": (3, 2),
        "net.b": (4, 2),
        "net.turned": (8, 3),
    }
    (tmp_path / "in").mkdir()
    save_file({key: torch.randn(shape) for key, shape in shapes.items()}, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    run_distributed(operations_sharded, 2, tmp_path / "in", tmp_path / "out")
    for dim in (0, 1, None):
        assert (tmp_path / f"out{dim}" / "model.safetensors").read_bytes() == (tmp_path / "in" / "model.safetensors").read_bytes()
