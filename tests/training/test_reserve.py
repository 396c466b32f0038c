"""What the tiers leave free covers what a run takes later, and a rehearsal leaves no trace in its numbers."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from modelzoo.config import ParallelConfig
from modelzoo.runtime import connect, prepare
from modelzoo.runtime.memory import resident_bytes
from modelzoo.training.reserve import rehearse, _Rehearsal
with connect(device="cpu") as world:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    rehearse(world, ParallelConfig(precision=sys.argv[1]))
    assert torch.equal(torch.rand(3), expected)
    before = resident_bytes()
    import matplotlib.figure, torch._dynamo
    model = prepare(_Rehearsal(), world, ParallelConfig(zero=3, precision=sys.argv[1]), for_tiers=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        model(torch.zeros(2, 8, dtype=torch.long)).backward()
        optimizer.step()
    print(resident_bytes() - before)
"""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_after_the_rehearsal_a_small_model_takes_nothing_more(precision: str) -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT, precision], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout.split()[-1]) < 2 * 2**20
