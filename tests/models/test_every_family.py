"""What must hold for every family of the registry: dtypes, tables, names of arguments, published activations."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.models.model import Model, ModelOutput

ROWS = Path(__file__).parents[1] / "conformance" / "families"
"""A tiny config of each family."""
IMAGES = ("vit", "dinov2")


def tiny(family: str, task: str | None = None) -> Model:
    torch.manual_seed(0)
    kind = model_class(family)
    row = yaml.safe_load((ROWS / f"{family}.yaml").read_text())
    task = task or next((each for each in kind.tasks if each.endswith("_lm")), kind.tasks[-1])
    config = kind.config_class(**converter_for(family).read_config(row["config"], task))
    return kind(config, task).eval()


def batch(model: Model) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if model.family in IMAGES:
        config: Any = model.config
        return {"pixel_values": torch.randn(2, config.num_channels, *config.image_size, generator=generator)}
    ids = torch.randint(5, 30, (2, 7), generator=generator)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    given = {"input_ids": ids, "attention_mask": mask}
    return given | {"labels": ids.masked_fill(mask == 0, -100)} if model.task == "seq2seq_lm" else given


def scores(output: ModelOutput) -> Tensor:
    found = output.last_hidden_state if output.logits is None else output.logits
    assert found is not None
    return found


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_runs_in_one_dtype_throughout(family):
    """ModelCenter's heads and poolers stayed in float16 whatever the model was, and a float32 model could not run."""
    model = tiny(family)
    given = batch(model)
    expected = scores(model(**given))
    assert expected.dtype == torch.float32
    model = model.to(torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    found = scores(model(**given))
    assert found.dtype == torch.bfloat16
    real = given.get("attention_mask", torch.ones(2, 1)).bool() if found.dim() == 3 else slice(None)
    spread = float(expected[real].std())
    assert float((found.float() - expected)[real].abs().mean()) < 0.1 * spread


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_leaves_no_second_table(family):
    """ModelCenter kept, and trained, an output layer of which a tied model made no use."""
    model = tiny(family)
    if not model.config.tie_word_embeddings:
        pytest.skip("not tied")
    rows = [name for name, each in model.named_parameters() if each.dim() == 2 and len(each) == model.config.vocab_size]
    assert len(rows) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_takes_part(family):
    """No weight is there that the loss does not see: it would be decayed by the optimizer and written to files."""
    model = tiny(family)
    scores(model(**batch(model))).float().square().sum().backward()
    idle = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    # Of a table of segments or of routed experts some rows may rest; the tensors as a whole have a gradient.
    assert not {name for name in idle if "experts" not in name and "global" not in name}


@pytest.mark.parametrize("family", FAMILIES)
def test_training_can_give_every_tensor_by_name(family):
    """ModelCenter's recipes gave CPM-1's context as its mask and its spans as token types, by position."""
    parameters = list(inspect.signature(model_class(family).forward).parameters)[1:]
    if family in IMAGES:
        assert parameters[0] == "pixel_values"
    else:
        assert parameters[:2] == ["input_ids", "attention_mask"]
    assert "labels" in parameters


@pytest.mark.parametrize("family", ["gpt2", "gptj", "opt", "t5", "mt5"])
def test_an_empty_config_means_what_it_means_to_transformers(family):
    """ModelCenter's GPT-2 and GPT-J had the exact gelu where the published models have its tanh form."""
    converter = converter_for(family)
    theirs = transformers.AutoConfig.for_model(family).to_dict() | {"id2label": None, "label2id": None}
    read = {key: value for key, value in converter.read_config(theirs).items() if key != "label_names"}
    empty = {key: value for key, value in converter.read_config({}).items() if key != "label_names"}
    assert read == empty
    if family in ("gpt2", "gptj"):
        assert read["activation"] == "gelu_new"


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "vit"])
def test_a_backbone_with_a_pooler_gives_its_output_unasked(family):
    """The quick start of ModelCenter's read a `pooler_output` that was None unless asked for."""
    model = tiny(family, "base")
    assert model(**batch(model)).pooler_output is not None
