"""Tiny random models of transformers and the same models of ours, with the same values."""

import torch
import transformers
from torch import Tensor, nn

from modelzoo.converters import converter_for
from modelzoo.models.auto import model_class
from modelzoo.models.model import Model

FAMILIES = ("bert", "roberta", "xlm-roberta")
TASKS = ("base", "masked_lm", "classification", "token_classification", "question_answering")
PAD = {"bert": 0, "roberta": 1, "xlm-roberta": 1}
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 18,
    "num_labels": 3,
}


def reference(family: str, task: str, *, spread: float = 1.0, **options) -> nn.Module:
    """Return a model of transformers, every one of whose values matters; `spread` scales what its norms see."""
    kind = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}[family]
    types = 2 if family == "bert" else 1
    sizes = SIZES | {"type_vocab_size": types, "pad_token_id": PAD[family]} | options
    if task == "question_answering":
        sizes["num_labels"] = 2  # start and end; transformers takes it from the config
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = getattr(transformers, converter_for(family).architectures[task])(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + 0.2 * noise if "LayerNorm.weight" in name or "layer_norm.weight" in name else 0.3 * noise
        is_small = any(
            part in name for part in ("embeddings", "LayerNorm", "output.dense", "head.dense.bias", "transform.dense.bias")
        )
        if is_small and "transform.LayerNorm" not in name:
            parameter.data *= spread
    return model


def ours_like(theirs: nn.Module, family: str, task: str) -> Model:
    """Return our model with the values of one of transformers."""
    converter, kind = converter_for(family), model_class(family)
    config = kind.config_class(**converter.read_config(theirs.config.to_dict(), task))
    model = kind.from_config(config, task)
    tensors = converter.weights(task, tied=config.tie_word_embeddings).to_ours(theirs.state_dict())
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
    return model.eval()


def pair(family: str, task: str, **options) -> tuple[Model, nn.Module]:
    theirs = reference(family, task, **options)
    return ours_like(theirs, family, task), theirs


def inputs(family: str, mask: list[list[int]] | None, *, width: int = 7, seed: int = 1) -> dict[str, Tensor]:
    """Return ids (no padding id among the real ones), the mask, and token types where the family has them."""
    rows = 3 if mask is None else len(mask)
    width = width if mask is None else len(mask[0])
    generator = torch.Generator().manual_seed(seed)
    batch = {"input_ids": torch.randint(2, SIZES["vocab_size"], (rows, width), generator=generator)}
    if family == "bert":
        batch["token_type_ids"] = torch.randint(0, 2, (rows, width), generator=generator)
    if mask is not None:
        batch["attention_mask"] = torch.tensor(mask)
        batch["input_ids"][batch["attention_mask"] == 0] = PAD[family]
    return batch


MASKS = {
    "none": None,
    "right": [[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6],
    "left": [[1] * 7, [0] * 3 + [1] * 4, [0] * 6 + [1]],
    "within": [[1, 0, 1, 1, 0, 1, 1], [1] * 7, [1, 1, 0, 0, 0, 0, 1]],
}


def comparable(output, mask: Tensor | None) -> list[Tensor]:
    """Return the results at real tokens, and those of rows that begin with one: transformers reads column 0 whatever is there."""
    found = []
    for name in ("logits", "last_hidden_state", "pooler_output", "start_logits", "end_logits"):
        tensor = getattr(output, name, None)
        if tensor is None:
            continue
        is_by_row = name == "pooler_output" or (name == "logits" and tensor.dim() == 2)
        places = None if mask is None else (mask[:, 0] if is_by_row else mask).bool()
        found.append(tensor.flatten(0, 0 if is_by_row else 1) if places is None else tensor[places])
    return found


def projected(tensors: list[Tensor]) -> Tensor:
    """Return one number that depends on each of the results differently."""
    generator = torch.Generator().manual_seed(2)
    return sum((each * torch.randn(each.shape, generator=generator).to(each.dtype)).sum() for each in tensors)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients by name; a tied parameter has one under each of its names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: each.grad.clone() for name, each in named if each.grad is not None}


def assert_same_gradients(mine: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Compare each tensor relative to its own largest value, or to a twentieth of the model's where it is small.

    A key's bias adds the same to all scores of a query: its gradient is 0, and what is found is rounding.
    """
    assert mine.keys() == theirs.keys()
    floor = max(float(each.abs().max()) for each in theirs.values()) / 20
    for name, gradient in theirs.items():
        worst, largest = float((mine[name] - gradient).abs().max()), float(gradient.abs().max())
        assert worst <= tolerance * max(largest, floor), f"{name}: {worst} of {largest}"
