"""Memory that runs out: in a step it is one clear error, and evaluation keeps no logits."""

import gc
import re
import shlex
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from tiny_runs import WORDS, model_folder, settings_for

import modelzoo
from modelzoo.data import build_dataset, load_tokenizer
from modelzoo.errors import OutOfMemoryError
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.plan import find_machine, plan_run, read_parts
from modelzoo.quantities import readable_size
from modelzoo.runtime import connect, find_latest
from modelzoo.training import EvaluationSet, SilentProgress, measure, resume, train
from modelzoo.training.less_memory import less_memory
from modelzoo.training.memory_error import memory_watched
from modelzoo.training.step import MicroBatch

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
        MemoryError(),
    ],
    ids=["accelerator", "torch", "Python"],
)
def test_memory_that_runs_out_is_said_with_step_and_batch(error):
    batches = [MicroBatch({"input_ids": torch.zeros(rows, 7)}, (0,), 1, 7) for rows in (3, 12, 2)]
    message = r"step 5: memory ran out; its largest micro-batch is 12 x 7 values"
    with pytest.raises(OutOfMemoryError, match=message) as raised, memory_watched("step 5", batches, "lower it"):
        raise error
    assert "the last checkpoint is intact; lower it; `modelzoo plan`" in str(raised.value)
    assert raised.value.exit_code == 6
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), memory_watched("step 5", batches, "lower it"):
        raise RuntimeError("shapes differ")


def test_what_would_take_less_is_said_and_was_planned(tmp_path):
    settings = modelzoo.settings("bert-boolq", train={"batch_size": 64}, output={"folder": tmp_path})
    with torch.device("meta"):
        model = Bert.from_config(BertConfig(vocab_size=30_522, num_labels=2), task="classification")
    lengths, evaluated = [256] * 640, [256] * 4
    parts, machine = read_parts(model), find_machine("a100-80gb", device_memory=2**36)
    plan = plan_run(settings, parts, machine, lengths=lengths, evaluated=evaluated)
    (tmp_path / "run" / "checkpoints" / "step-3").mkdir(parents=True)
    job = SimpleNamespace(
        plan=plan,
        settings=settings,
        dataset=SimpleNamespace(lengths=lengths),
        evaluation=SimpleNamespace(dataset=SimpleNamespace(lengths=evaluated)),
        checkpoints=tmp_path / "run" / "checkpoints",
    )
    planned, title, *offers, go_on = less_memory(job)
    assert planned.startswith(f"planned      {readable_size(plan.peak_bytes)}: activations ")
    assert title == "any one of these is planned to take less:"
    assert len(offers) == 3
    for offer in offers:
        words, told = re.split(r"  +", offer.strip())
        changes = {key: yaml.safe_load(value) for key, value in (word.split("=") for word in shlex.split(words))}
        other = plan_run(modelzoo.settings(settings, **changes), parts, machine, lengths=lengths, evaluated=evaluated)
        assert told.startswith(readable_size(other.peak_bytes))
        assert other.peak_bytes < plan.peak_bytes
    run, *words = go_on.partition("modelzoo resume ")[2].split()
    assert run == str(tmp_path / "run")
    assert all(word.startswith(("parallel.recompute=", "memory.")) for word in words)
    job.plan = None
    assert less_memory(job) == []


def test_a_run_says_what_was_planned_where_memory_runs_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Bert, "forward", out_of_memory)
    with pytest.raises(OutOfMemoryError, match="step 1: memory ran out") as raised:
        train(settings_for(tmp_path), progress=SilentProgress())
    assert re.search(r"\n  planned      [\d.]+ [MG]iB: program [\d.]+ [MG]iB, ", str(raised.value))


def out_of_memory(*arguments, **options):
    raise MemoryError


RUN = """
import resource, sys
from pathlib import Path
import torch
sys.path[:0] = [{here!r}]
from tiny_runs import settings_for
from modelzoo.errors import OutOfMemoryError
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.plan import find_machine, plan_run, read_parts
from modelzoo.quantities import readable_size
from modelzoo.training import SilentProgress, train

class Squeezed(SilentProgress):
    def step(self, report):
        if report.step == {step}:  # threads and files still find room, the forward does not
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 128 * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

def forward(self, *arguments, plain=Bert.forward, **options):
    torch.empty(2**28, dtype=torch.uint8)  # a batch that needs 256 MiB
    return plain(self, *arguments, **options)

Bert.forward = forward
settings = settings_for(Path({folder!r}), evaluation__every={every!r}, train__epochs=20.0, train__batch_size={rows},
    checkpoint__every=1)
try:
    train(settings, progress=Squeezed())
except OutOfMemoryError as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(error)
    sys.exit(error.exit_code)
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("step", "every", "doing"),
    [
        (1, "20ep", "step 2: memory ran out; its largest micro-batch is 22 x "),
        pytest.param(2, "1ep", "the evaluation after step 2: memory ran out", marks=SLOW),
        pytest.param(3, "20ep", "step 4: memory ran out", marks=SLOW),
        pytest.param(7, "20ep", "step 8: memory ran out", marks=SLOW),
        pytest.param(9, "3ep", "the evaluation after step 9: memory ran out", marks=SLOW),
    ],
)
def test_a_run_whose_memory_runs_out_says_so_and_goes_on_from_its_checkpoint(tmp_path, step, every, doing):
    settings_for(tmp_path)
    script = RUN.format(here=str(HERE), folder=str(tmp_path), step=step, rows=22, every=every)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 6, ran.stdout + ran.stderr
    assert doing in ran.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    found = find_latest(folder / "checkpoints")
    assert found is not None
    assert found.manifest.step == step - doing.startswith("the")
    assert resume(folder, progress=SilentProgress()).stopped == "finished"


def test_an_evaluation_keeps_no_logits(tmp_path):
    folder = model_folder(tmp_path / "model")
    model = Bert.from_pretrained(folder, task="masked_lm")
    some = [{"text": " ".join(WORDS[: 4 + number % 9])} for number in range(24)]
    dataset = build_dataset(some, task="masked_lm", tokenizer=load_tokenizer(folder), max_length=24)
    samples = EvaluationSet("validation", dataset, some, {}, 40, model.config.vocab_size)
    kept, alive = [], []
    forward = model.forward

    def noted(*arguments, **options):
        gc.collect()
        alive.append(sum(reference() is not None for reference in kept))
        output = forward(*arguments, **options)
        kept.append(weakref.ref(output.logits))
        return output

    model.forward = noted
    gc.collect()
    gc.freeze()  # what was there before need not be visited again at each batch
    try:
        with connect(device="cpu") as world:
            measure(model, samples, world)
    finally:
        gc.unfreeze()
    assert len(alive) > 4
    assert max(alive) <= 1
