"""ModelCenter's folders (config.json without model_type, pytorch_model.pt) load as they are, and are saved as ones that say all."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import modelzoo
from modelzoo.converters import converter_for
from modelzoo.converters.modelcenter import KEPT
from modelzoo.models.auto import model_class
from modelzoo.models.model import Model

ROWS = Path(__file__).parents[1] / "conformance" / "families"


def written(family: str, folder: Path) -> Model:
    """Write a folder as ModelCenter does, in half precision, and return the model of it."""
    config = yaml.safe_load((ROWS / f"{family}.yaml").read_text())["config"] | {"half": True, "att_mask_value": "-inf"}
    torch.manual_seed(0)
    converter, cls, task = converter_for(family), model_class(family), KEPT[family]
    model = cls.from_config(cls.config_class(**converter.read_config(config)), task).half().eval()
    mapping = converter.weights(task, tied=model.config.tie_word_embeddings, values=model.config.values())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(mapping.to_theirs(model.state_dict()), folder / "pytorch_model.pt")
    (folder / "vocab.txt").write_text("<pad>\n")
    return model


@pytest.mark.parametrize("family", KEPT)
def test_modelcenters_folder_is_read_and_saved_with_its_vocabulary(family: str, tmp_path: Path) -> None:
    expected = written(family, tmp_path / "old").state_dict()
    model = modelzoo.from_pretrained(tmp_path / "old", family=family, task=KEPT[family], allow_pickle=True)
    found = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == torch.float16 for name in found)
    model.save_pretrained(tmp_path / "new")
    again = modelzoo.from_pretrained(tmp_path / "new")
    assert (again.family, again.task) == (family, KEPT[family])
    assert (tmp_path / "new" / "vocab.txt").read_text() == "<pad>\n"
    names = torch.load(tmp_path / "old" / "pytorch_model.pt")
    assert {name: tensor.tolist() for name, tensor in load_file(tmp_path / "new" / "model.safetensors").items()} == {
        name: tensor.tolist() for name, tensor in names.items()
    }
