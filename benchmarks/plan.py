"""Plan against measured: the highest resident memory and the step time of small models, each in a fresh process.

    python benchmarks/plan.py            # the table of docs/plan.md, about 3 minutes on two cores
    python benchmarks/plan.py bert 512 8 8 128 none [1000MiB]

A row is family, width, blocks, rows, tokens, recompute and, where there is one, the budget of a run with a disk tier.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = (
    "bert 512 8 8 128 none",
    "bert 512 8 8 128 selective",
    "bert 512 8 8 128 blocks",
    "bert 512 8 8 128 none 1000MiB",
    "bert 768 12 4 128 none",
    "gpt2 512 8 4 128 none",
    "gpt2 512 8 8 128 blocks",
    "t5 512 8 4 128 none",
    "t5 512 8 4 128 blocks",
)
WORDS = 8000
STEPS = 3


def main() -> None:
    """Run one row here, or every row in a process of its own."""
    if len(sys.argv) > 1:
        print(measure(*sys.argv[1:]), flush=True)
        return
    for row in ROWS:
        subprocess.run([sys.executable, __file__, *row.split()], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


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


def measure(family: str, width: str, blocks: str, rows: str, tokens: str, recompute: str, budget: str | None = None) -> str:
    """Plan a row, run it, and return both."""
    import torch
    import torch._dynamo  # what a run imports later is part of the program

    from modelzoo.config import MemoryConfig, ParallelConfig
    from modelzoo.layers import skip_initialization
    from modelzoo.plan import Workload, find_machine, plan_workload, probe, read_parts
    from modelzoo.runtime import clip_grad_norm, connect, layout
    from modelzoo.runtime.memory import resident_bytes
    from modelzoo.training.optimizer import build_optimizer

    torch.set_num_threads(1)
    size, depth, lengths = int(width), int(blocks), (int(tokens),) * int(rows)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, connect(device="cpu") as world:
        with torch.device("meta"), skip_initialization():
            model = build(family, size, depth)
        config = ParallelConfig(data_shard=1, zero=0, recompute=recompute)
        memory = MemoryConfig.model_validate({} if budget is None else {"host": budget, "disk": {"path": f"{folder}/tiers"}})
        machine = probe(find_machine("this"), Path(folder), hidden_size=size, tokens=sum(lengths))
        before = resident_bytes()
        machine = dataclasses.replace(machine, program_bytes=before)
        plan = plan_workload(read_parts(model), Workload(lengths=lengths, recompute=recompute), config, machine, memory=memory)
        passing = sum(line.size_bytes for line in plan.memory.tiers["host"] if line.name in ("activations", "logits", "workspace"))
        layout(world, config, memory, reserved_bytes=before + passing)(model)
        model.init_weights()
        optimizer = build_optimizer(model.train(), lr=1e-4, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8)
        shortest = float("inf")
        for _ in range(STEPS):
            ids = torch.randint(3, WORDS, (len(lengths), lengths[0]))
            labels = torch.zeros(len(ids), dtype=torch.long) if family == "bert" else ids
            masks = {"attention_mask": torch.ones_like(ids)}
            masks |= {"decoder_attention_mask": torch.ones_like(ids)} if family == "t5" else {}
            started = time.perf_counter()
            model(input_ids=ids, labels=labels, **masks).loss.backward()
            clip_grad_norm(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            shortest = min(shortest, time.perf_counter() - started)
        peak = 1024 * int(
            next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1]
        )
        if budget is not None:
            from modelzoo.runtime.tiers import tiers_of

            tiers_of(model).close()
    name = f"{family} {width} x {blocks}, {rows} x {tokens}, {recompute}{'' if budget is None else f', {budget} and a disk'}"
    memory_text = f"plan {plan.peak_bytes >> 20:5} MiB, measured {peak >> 20:5} MiB ({plan.peak_bytes / peak - 1:+.0%})"
    time_text = f"plan {plan.time.step:.2f} s, measured {shortest:.2f} s ({plan.time.step / shortest - 1:+.0%})"
    return f"{name:<46} {memory_text}   step: {time_text}"


if __name__ == "__main__":
    main()
