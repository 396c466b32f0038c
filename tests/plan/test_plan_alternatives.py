"""Every alternative that a plan offers, fed back as a user pastes it: accepted by the settings, planned as said, and it fits."""

import json
import shlex
from pathlib import Path

import pytest

from modelzoo.config import resolve_settings
from modelzoo.plan import find_machine, plan_training

GPT = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1024, "n_layer": 24, "n_head": 16}
T5 = {"model_type": "t5", "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}

CASES: dict[str, tuple[dict[str, object], str, int, dict[str, object], list[str]]] = {
    # config, machine, ranks, changes of the machine, overrides
    "fits a host": (GPT, "this", 1, {"host_memory": 64 * 2**30}, []),
    "too large for a host": (GPT, "this", 1, {"host_memory": 4 * 2**30}, ["train.batch_size=16"]),
    "with 8-bit moments": (GPT, "this", 1, {"host_memory": 3 * 2**30}, ["optimizer.moments=8bit"]),
    "without clipping": (GPT, "this", 1, {"host_memory": 4 * 2**30}, ["train.clip_norm=null"]),
    "on two ranks": (GPT, "this", 2, {"host_memory": 5 * 2**30}, ["parallel.zero=2"]),
    "with a tensor axis": (GPT, "this", 2, {"host_memory": 5 * 2**30}, ["parallel.tensor=2"]),
    "compiled": (GPT, "a100-40gb", 1, {"device_memory": 5 * 2**30}, ["parallel.compile=true"]),
    "on an accelerator": (GPT, "a100-40gb", 1, {"device_memory": 40 * 2**30}, []),
    "too large for an accelerator": (GPT, "a100-40gb", 1, {"device_memory": 4 * 2**30}, []),
    "for an accelerator and its host": (GPT, "a100-40gb", 1, {"device_memory": 4 * 2**30, "host_memory": 6 * 2**30}, []),
    "on eight accelerators": (GPT, "a100-80gb", 8, {}, ["train.batch_size=64", "data.max_length=1024"]),
    "with an adapter": (GPT, "this", 1, {"host_memory": 3 * 2**30}, ["adapter.r=8"]),
    "of an encoder-decoder": (T5, "this", 1, {"host_memory": 4 * 2**30}, []),
    "with a budget": (GPT, "this", 1, {"host_memory": 64 * 2**30}, ["memory.host=4GiB", "memory.disk.path=tiers"]),
    "by tokens": (GPT, "this", 1, {"host_memory": 8 * 2**30}, ["train.batch_size=null", "train.batch_tokens=8192"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_offered_is_accepted_and_planned_as_said(case: str, tmp_path: Path) -> None:
    config, name, ranks, changes, overrides = CASES[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [f"model={tmp_path}", *overrides]
    machine = find_machine(name, **changes)
    found = plan_training(resolve_settings("bert-boolq", words).settings, ranks=ranks, machine=machine)
    assert found.alternatives or found.fits, found.plan.problems
    for each in found.alternatives:
        pasted = shlex.split(each.text)  # as a shell does
        assert pasted == [word.replace('"', "") for word in each.overrides]
        keys = {word.partition("=")[0] for word in pasted}  # in place of the same keys: a key that is set twice is refused
        kept = [word for word in words if word.partition("=")[0] not in keys]
        settings = resolve_settings("bert-boolq", [*kept, *pasted]).settings
        again = plan_training(settings, ranks=settings.parallel.ranks or ranks, machine=machine)
        assert (again.peak_bytes, again.step_seconds) == (each.plan.peak_bytes, each.plan.time.step), each.text
        assert not again.plan.memory_problems, each.text
