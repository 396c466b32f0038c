"""Loading holds the model once: no second copy, no mapped file."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CODE = r"""
import re, sys
from pathlib import Path
from modelzoo.converters import converter_for
from modelzoo.hub import ModelFacts, load_weights, read_config
from modelzoo.layers import skip_initialization
from modelzoo.models.bert import Bert, BertConfig

pytest_plugins = ["tiny_folders"]


def load(folder):
    values = converter_for("bert").read_config(read_config(folder))
    with skip_initialization():
        model = Bert(BertConfig(**values), "base")
    load_weights(model, folder, ModelFacts("bert", "base", values))
    return model


def status(field):
    return int(re.search(field + r":\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


load(Path(sys.argv[1]))
before = status("VmRSS")
model = load(Path(sys.argv[2]))
size = sum(parameter.nbytes for parameter in model.parameters()) / 1024
assert "model.safetensors" not in Path("/proc/self/maps").read_text()
print((status("VmHWM") - before) / size)
"""


def test_the_peak_is_the_models_own_size(hf_folder: Callable[..., Path], minilm: Path) -> None:
    """The highest resident size of a fresh process, above what a first tiny load has already imported."""
    command = [sys.executable, "-c", CODE, str(hf_folder("BertModel")), str(minilm)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True, env=environment)
    assert 0.5 < float(run.stdout) <= 1.1
