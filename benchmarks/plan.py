"""Plan against measured: the highest resident memory and the step time of small models, each in fresh processes.

    python benchmarks/plan.py            # the tables of docs/plan.md, about 8 minutes on two cores
    python benchmarks/plan.py budget=    # the rows whose words have this in them
    python benchmarks/plan.py row bert 512 8 8 128 none budget=900MiB update=deferred
    python benchmarks/plan.py row t5 512 8 4 128 blocks ranks=2 zero=3

A row is family, width, blocks, rows, tokens and recompute, then what is not plain: `budget` of a run with a disk (`smallest` is
the least that the plan allows), `update` (memory.optimizer_update), and `ranks`, each with so many rows, at a level of `zero`.
"""

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sides import peak_rss

ROWS = (
    "bert 512 8 8 128 none",
    "bert 512 8 8 128 selective",
    "bert 512 8 8 128 blocks",
    "bert 768 12 4 128 none",
    "gpt2 512 8 4 128 none",
    "gpt2 512 8 8 128 blocks",
    "t5 512 8 4 128 none",
    "t5 512 8 4 128 blocks",
    "bert 512 8 8 128 none budget=1000MiB",
    "bert 512 8 8 128 none budget=smallest update=deferred",
    "bert 512 8 8 128 blocks budget=smallest update=in_backward",
    "bert 768 12 4 128 none budget=1500MiB update=deferred",
    "bert 768 12 16 128 blocks budget=smallest update=deferred",
    "gpt2 512 8 4 128 none budget=900MiB",
    "gpt2 512 8 8 128 blocks budget=smallest update=deferred",
    "gpt2 768 12 4 128 blocks budget=1200MiB update=in_backward",
    "t5 512 8 4 128 none budget=1000MiB update=deferred",
    "t5 512 8 4 128 blocks budget=smallest",
    "bert 512 8 4 128 none ranks=2 zero=3",
    "bert 512 8 4 128 none ranks=2 zero=0",
    "gpt2 512 8 4 128 none ranks=2 zero=2",
    "t5 512 8 4 128 blocks ranks=2 zero=3",
    "bert 512 8 4 128 none ranks=2 zero=3 budget=800MiB update=deferred",
    "gpt2 512 8 4 128 blocks ranks=2 zero=3 budget=smallest update=deferred",
)
WORDS = 8000
STEPS = 3


def main() -> None:
    """Run one row here, or every row in processes of its own."""
    if sys.argv[1:2] == ["row"]:
        text = measure(*sys.argv[2:8], **dict(word.split("=") for word in sys.argv[8:]))
        if text:
            print(text, flush=True)
        return
    for row in ROWS:
        if all(word in row for word in sys.argv[1:]):
            start(row)


def start(row: str) -> None:
    """Run a row and let it print itself."""
    ranks = int(next((word.partition("=")[2] for word in row.split() if word.startswith("ranks=")), 1))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    common = os.environ | {"OMP_NUM_THREADS": "1"}
    if ranks > 1:
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    own = [common if ranks == 1 else common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    processes = [subprocess.Popen([sys.executable, __file__, "row", *row.split()], env=each) for each in own]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{row} failed; its message is above")


def build(family: str, width: int, blocks: int):
    """Return a model of a family."""
    from modelzoo.models.bert import Bert, BertConfig
    from modelzoo.models.gpt2 import GPT2, GPT2Config
    from modelzoo.models.t5 import T5, T5Config

    sizes = {"vocab_size": WORDS, "hidden_size": width, "num_heads": width // 64, "intermediate_size": 4 * width}
    if family == "bert":
        return Bert(BertConfig(**sizes, num_layers=blocks, max_positions=512, type_vocab_size=2), "classification")
    if family == "gpt2":
        return GPT2(GPT2Config(**sizes, num_layers=blocks, max_positions=512), "causal_lm")
    return T5(T5Config(**sizes, num_layers=blocks // 2, num_decoder_layers=blocks // 2, head_size=64), "seq2seq_lm")


def measure(
    family: str,
    width: str,
    blocks: str,
    rows: str,
    tokens: str,
    recompute: str,
    budget: str = "",
    update: str = "step",
    ranks: str = "1",
    zero: str = "0",
) -> str:
    """Plan a row, run it, and return both; nothing on other ranks than the first."""
    import torch

    from modelzoo.config import MemoryConfig, ParallelConfig
    from modelzoo.layers import skip_initialization
    from modelzoo.plan import Workload, find_machine, plan_workload, probe, read_parts
    from modelzoo.runtime import connect, layout
    from modelzoo.runtime.memory import give_back_at_once, resident_bytes
    from modelzoo.runtime.tiers import tiers_of
    from modelzoo.training.reserve import rehearse

    torch.set_num_threads(1)
    size, depth, lengths = int(width), int(blocks), (int(tokens),) * int(rows)
    count, level = int(ranks), int(zero)
    shape = {"data_shard": count if level else 1, "data_replicate": 1 if level else count}
    config = ParallelConfig(**shape, zero=level, recompute=recompute)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, connect(device="cpu") as world:
        with torch.device("meta"), skip_initialization():
            model = build(family, size, depth)
        machine = probe(find_machine("this"), Path(folder), hidden_size=size, tokens=sum(lengths))
        if budget:
            give_back_at_once()
        rehearse(world, config)  # what a run imports and starts later is part of the program
        machine = dataclasses.replace(machine, program_bytes=resident_bytes())
        work, parts = Workload(lengths=lengths, recompute=recompute), read_parts(model)

        def planned(budget: str):
            disk = {"host": budget, "disk": {"path": f"{folder}/tiers"}, "optimizer_update": update}
            memory = MemoryConfig.model_validate(disk if budget else {})
            return plan_workload(parts, work, config, machine, ranks=count, memory=memory), memory

        if budget == "smallest":
            budget = f"{(planned('1MiB')[0].smallest_bytes >> 20) + 2}MiB"
        plan, memory = planned(world.broadcast(budget))
        layout(world, config, memory, reserved_bytes=plan.memory.reserved_bytes)(model)
        model.init_weights()
        shortest = run(model, family, lengths, clips=update != "in_backward")
        found = peak_rss()
        tiers = tiers_of(model)
        if tiers is not None:
            tiers.close()
        if not world.is_main:
            return ""
    options = {"budget": budget, "update": update if budget else "", "ranks": ranks if count > 1 else "", "zero": ranks and zero}
    if count == 1:
        del options["zero"]
    name = " ".join([family, f"{width}x{blocks}", f"{rows}x{tokens}", recompute, *(f"{k}={v}" for k, v in options.items() if v)])
    memory_text = f"plan {plan.peak_bytes >> 20:5} MiB, measured {found >> 20:5} MiB ({plan.peak_bytes / found - 1:+.1%})"
    time_text = f"plan {plan.time.step:.2f} s, measured {shortest:.2f} s ({plan.time.step / shortest - 1:+.0%})"
    return f"{name:<66} {memory_text}   step: {time_text}"


def run(model, family: str, lengths: tuple[int, ...], *, clips: bool) -> float:
    """Train a few steps and return the seconds of the shortest."""
    import torch

    from modelzoo.runtime import clip_grad_norm
    from modelzoo.training.optimizer import build_optimizer

    optimizer = build_optimizer(model.train(), lr=1e-4, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8)
    shortest = float("inf")
    for _ in range(STEPS):
        ids = torch.randint(3, WORDS, (len(lengths), lengths[0]))
        labels = torch.zeros(len(ids), dtype=torch.long) if family == "bert" else ids
        masks = {"attention_mask": torch.ones_like(ids)}
        masks |= {"decoder_attention_mask": torch.ones_like(ids)} if family == "t5" else {}
        started = time.perf_counter()
        model(input_ids=ids, labels=labels, **masks).loss.backward()
        if clips:
            clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        shortest = min(shortest, time.perf_counter() - started)
    return shortest


if __name__ == "__main__":
    main()
