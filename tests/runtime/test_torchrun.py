import subprocess
import sys

SCRIPT = """
from modelzoo.runtime import connect
with connect(device="cpu") as world:
    assert world.sum([1.0, world.rank]) == [2.0, 1.0]
    assert world.roll_call.keeper is None
    if world.is_main:
        print(f"{world.world_size} ranks met")
"""


def test_processes_of_torchrun_meet(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "2 ranks met" in ended.stdout
