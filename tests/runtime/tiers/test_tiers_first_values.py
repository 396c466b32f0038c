"""First values that a family draws for the whole model are those of one plain process, wherever they live."""

from pathlib import Path

import pytest
import torch
from torch import nn

from modelzoo.config.memory import MemoryConfig
from modelzoo.models.distilbert import DistilBert, DistilBertConfig
from modelzoo.models.model import Model
from modelzoo.models.modernbert import ModernBert, ModernBertConfig
from modelzoo.models.t5 import T5, T5Config
from modelzoo.runtime import connect, prepare
from modelzoo.runtime.tiers import Placement, attach_tiers, sizes_of, tiers_of
from modelzoo.runtime.tiers.unit import KINDS
from modelzoo.sharded import local_values

SIZES = {"vocab_size": 600, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "intermediate_size": 128}
MODELS = {
    "t5": (T5, T5Config(**SIZES, head_size=16), "seq2seq_lm"),
    "modernbert": (ModernBert, ModernBertConfig(**SIZES, pad_token_id=0), "masked_lm"),
    "distilbert": (DistilBert, DistilBertConfig(**SIZES, has_sinusoidal_positions=True), "classification"),
}


@pytest.mark.parametrize("family", MODELS)
def test_first_values_on_disk_are_those_in_memory(family: str, tmp_path: Path) -> None:
    cls, config, task = MODELS[family]
    torch.manual_seed(0)
    plain: Model = cls.from_config(config, task)  # type: ignore[arg-type]  # one of its tasks
    memory = MemoryConfig.model_validate({"host": "100%", "disk": {"path": str(tmp_path)}})
    with connect(device="cpu") as world:

        def on_disk(model: nn.Module) -> None:
            prepare(model, world, for_tiers=True)
            sizes = sizes_of(model)
            homes = tuple(dict.fromkeys(KINDS, "disk") for _ in sizes)
            everything = Placement(homes, 0, 16 * sum(each.shard for each in sizes), 0, 0)
            attach_tiers(model, world, memory, placement=everything, is_filled=False)

        torch.manual_seed(0)
        model = cls.from_config(config, task, lay_out=on_disk)  # type: ignore[arg-type]  # one of its tasks
        tiers = tiers_of(model)
        assert tiers is not None
        try:
            for name, parameter in model.named_parameters():
                assert torch.equal(local_values(parameter), plain.get_parameter(name)), name
        finally:
            tiers.close()
