"""A run that others published, met from the model's config and the machine's figures alone.

torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1: Llama 3.1 8B, 8 x H100 (96 GB HBM2e, 500 W), FSDP, bf16, 2 x 8192
tokens a GPU, selective activation checkpointing. The page does not say which of its two kinds: the repository's llama3_8b.toml has
"op" (every second matrix product is computed again), the other is every second block. Both are planned.
"""

import pytest
import torch

from modelzoo.config import ParallelConfig
from modelzoo.layers import skip_initialization
from modelzoo.models.llama import Llama, LlamaConfig
from modelzoo.plan import Plan, Workload, find_machine, plan_workload, read_parts


def planned(recompute: str, *, is_compiled: bool, ranks: int = 8) -> Plan:
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, num_layers=32, num_heads=32, num_key_value_heads=8, head_size=128,
        intermediate_size=14336, max_positions=131072, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"), skip_initialization():
        model = read_parts(Llama(config, "causal_lm"))
    assert model.numel == 8_030_261_248
    work = Workload(
        lengths=(8192, 8192),
        precision="bfloat16",
        recompute=recompute,
        is_compiled=is_compiled,
        is_host=False,
        is_packed=False,
        whole_scores=True,  # its loss holds the scores of all tokens, in float32
    )
    layout = ParallelConfig(data_shard=ranks, zero=3, precision="bfloat16")
    return plan_workload(model, work, layout, find_machine("h100-96gb-500w"), ranks=ranks)


@pytest.mark.parametrize("recompute", ["products 2", "every 2"])
@pytest.mark.parametrize(("is_compiled", "gib", "tokens_per_second"), [(False, 82.4, 5762), (True, 77.0, 6667)])
def test_memory_and_time_of_torchtitans_llama(recompute: str, is_compiled: bool, gib: float, tokens_per_second: int) -> None:
    plan = planned(recompute, is_compiled=is_compiled)
    allocated = plan.peak_bytes - plan.machine.context_bytes  # its column is what torch's allocator holds
    assert allocated / 2**30 == pytest.approx(gib, rel=0.15)
    assert plan.work.step_tokens / plan.tokens_per_second == pytest.approx(plan.work.step_tokens / tokens_per_second, rel=0.30)
    assert plan.time.bound == "compute"
    assert plan.fits


def test_memory_on_128_ranks_of_the_same_page() -> None:
    plan = planned("products 2", is_compiled=False, ranks=128)
    assert (plan.peak_bytes - plan.machine.context_bytes) / 2**30 == pytest.approx(67.0, rel=0.15)
