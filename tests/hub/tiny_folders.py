"""Tiny model folders as transformers writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

TINY = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 18,
}


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter values of its own: zero biases and unit norms would hide a mix-up."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + 0.2)
    return model.eval()


@pytest.fixture
def hf_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny random transformers model of that class; config fields as keywords."""

    def write(name: str = "BertForSequenceClassification", *, folder: str = "hf", shard: str = "1GB", **fields: Any) -> Path:
        import transformers

        model_class = getattr(transformers, name)
        model = randomised(model_class(model_class.config_class(**{**TINY, **fields})))
        model.save_pretrained(tmp_path / folder, max_shard_size=shard)
        return tmp_path / folder

    return write
