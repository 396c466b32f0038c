"""The largest GPT that takes three AdamW steps under a memory limit of the kernel: ours against a plain loop and two peers.

    sudo python benchmarks/model_scale.py --limit 2GiB                 # one row of the table, at most 8 minutes on two cores
    python benchmarks/model_scale.py --limit 700MiB --hidden 256 --cap 24 --patience 60 --only plain ours     # a quick look

Every attempt is a process in a memory control group of its own: a GPT-2 of `--hidden` features, heads of 64, 8,192 words, one row
of 128 tokens, blocks computed again in the backward, gradients clipped, AdamW with float32 moments. An attempt counts if three
steps end with a finite loss within `--patience` seconds. The number of blocks is found by doubling and then by halving the rest, to
within 4 %. `ours` holds what does not fit on the disk (`--folder`); its first attempt is `--cap` blocks, for memory alone would not
stop it.

mapped     the same loop on parameters, gradients and moments in memory-mapped files (`--only ours mapped --start 42 --cap 42`)
plain      torch modules, torch.utils.checkpoint and fused AdamW in one loop
trainer    transformers.Trainer with gradient checkpointing
deepspeed  ZeRO-3 with parameters and optimizer states offloaded to the CPU; from the folder that `--deepspeed` names
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmark_model import VOCABULARY, gpt_config
from memory_group import Outcome, run_limited

SIDES = ("ours", "mapped", "plain", "trainer", "deepspeed")
UNASKED = ("mapped",)
"""Sides that run only when they are named: they find no largest size, they are slow."""
LENGTH = 128
STEPS = 3
MARGIN = 96 * 2**20
"""Bytes below the limit that `ours` is told to stay: what the kernel counts beside the process's own pages."""


def ids_of(step: int) -> Any:
    """Return the row of a step."""
    import torch

    return torch.randint(1, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(step))


def train(model: Any, optimizer: Any, clip: Callable[[Any, float], Any]) -> float:
    """Take the steps, say how long the last two were, and return the last loss."""
    model.train()
    started = 0.0
    for step in range(STEPS):
        if step == 1:
            started = time.perf_counter()
        ids = ids_of(step)
        loss = model(ids, labels=ids).loss
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"{(time.perf_counter() - started) / (STEPS - 1):.1f} s a step", flush=True)
    return float(loss.detach())


def ours(hidden: int, layers: int, limit: int, folder: str) -> float:
    """Train with tiers."""
    import torch

    from modelzoo import GPT2
    from modelzoo.config import MemoryConfig, ParallelConfig
    from modelzoo.plan import Workload, read_parts
    from modelzoo.plan.memory import SMALL_BYTES
    from modelzoo.runtime import clip_grad_norm, connect, layout
    from modelzoo.runtime.memory import resident_bytes
    from modelzoo.runtime.tiers import TieredAdamW, tiers_of
    from modelzoo.training.reserve import activation_bytes, rehearse

    with connect(device="cpu") as world, tempfile.TemporaryDirectory(dir=folder) as path:
        with torch.device("meta"):
            skeleton = GPT2(gpt_config(hidden, layers, LENGTH), "causal_lm")
        work = Workload(lengths=(LENGTH,), recompute="blocks")
        config = ParallelConfig(recompute="blocks")
        rehearse(world, config)
        reserved = resident_bytes() + SMALL_BYTES + activation_bytes(read_parts(skeleton), work)
        memory = MemoryConfig.model_validate({"host": str(limit - MARGIN), "disk": {"path": path}, "optimizer_update": "deferred"})
        lay_out = layout(world, config, memory, reserved_bytes=reserved)
        model = GPT2.from_config(gpt_config(hidden, layers, LENGTH), "causal_lm", lay_out=lay_out)
        tiers = tiers_of(model)
        assert tiers is not None
        try:
            return train(model, TieredAdamW(model.parameters(), tiers, lr=1e-4), clip_grad_norm)
        finally:
            tiers.close()


def plain(hidden: int, layers: int, folder: str | None = None) -> float:
    """Train our modules in a loop of torch alone; with a folder on memory-mapped files there."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from modelzoo import GPT2

    if folder is None:
        model = GPT2.from_config(gpt_config(hidden, layers, LENGTH), "causal_lm")
    else:
        with torch.device("meta"):
            model = GPT2(gpt_config(hidden, layers, LENGTH), "causal_lm")
        map_parameters(model, folder)
        model.init_weights()
    for block in model.shard_units():
        forward = block.forward
        block.forward = lambda *args, forward=forward, **options: checkpoint(forward, *args, use_reentrant=False, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if folder is not None:
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = mapped_like(parameter, folder, f"gradient-{number}")
            moments = {kind: mapped_like(parameter, folder, f"{kind}-{number}") for kind in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
        optimizer.zero_grad = lambda: torch._foreach_zero_([parameter.grad for parameter in model.parameters()])
    return train(model, optimizer, torch.nn.utils.clip_grad_norm_)


def map_parameters(model: Any, folder: str) -> None:
    """Give a model on meta parameters in files, tied ones once."""
    import torch

    known: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in known:
                known[id(parameter)] = torch.nn.Parameter(mapped_like(parameter, folder, f"parameter-{len(known)}"))
            module._parameters[name] = known[id(parameter)]


def mapped_like(tensor: Any, folder: str, name: str) -> Any:
    """Return zeros of a tensor's shape in a file."""
    import torch

    path = os.path.join(folder, name)
    return torch.from_file(path, shared=True, size=tensor.numel(), dtype=torch.float32).view(tensor.shape)


def mapped(hidden: int, layers: int, folder: str) -> float:
    """Train the plain loop on memory-mapped files."""
    with tempfile.TemporaryDirectory(dir=folder) as path:
        return plain(hidden, layers, path)


def their_model(hidden: int, layers: int) -> Any:
    """Return the same model as transformers has it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=hidden, n_layer=layers, n_head=hidden // 64, n_positions=LENGTH, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def trainer(hidden: int, layers: int) -> float:
    """Train with transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=1, learning_rate=1e-4, max_grad_norm=1.0, use_cpu=True,
            save_strategy="no", report_to=[], logging_steps=1, optim="adamw_torch_fused", disable_tqdm=True,
        )  # fmt: skip
        rows = [{"input_ids": ids_of(step)[0], "labels": ids_of(step)[0]} for step in range(STEPS)]
        return float(Trainer(their_model(hidden, layers), arguments, train_dataset=rows).train().training_loss)


def deepspeed(hidden: int, layers: int) -> float:
    """Train with ZeRO-3 and everything offloaded to the CPU."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    import deepspeed as engine_of
    import torch

    engine_of.init_distributed(dist_backend="gloo")
    offload = {"device": "cpu", "pin_memory": False}
    config = {
        "train_batch_size": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    model = their_model(hidden, layers)  # zero.Init of 0.19.8 fails on torch 2.13
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    engine, *_ = engine_of.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(STEPS):
        ids = ids_of(step)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
    return float(loss.detach())


def parameters_of(hidden: int, layers: int) -> int:
    """Return the number of parameters."""
    return layers * (12 * hidden * hidden + 13 * hidden) + (VOCABULARY + LENGTH) * hidden + 2 * hidden


def attempt(side: str, layers: int, options: argparse.Namespace) -> bool:
    """Return whether a side trains so many blocks, and say what came of it."""
    command = [sys.executable, __file__, "--one", side, "--layers", str(layers), "--hidden", str(options.hidden)]
    command += ["--limit", options.limit, "--folder", options.folder]
    paths = [options.deepspeed, os.environ.get("PYTHONPATH", "")] if side == "deepspeed" else [os.environ.get("PYTHONPATH", "")]
    found = run_limited(
        command, size_of(options.limit), timeout_s=options.patience, environment={"PYTHONPATH": ":".join(filter(None, paths))}
    )
    is_good = found.returncode == 0 and math.isfinite(_loss(found))
    paces = [line for line in found.output.splitlines() if line.endswith("s a step")]
    what = "   ".join([f"loss {_loss(found):.3f}", *paces[-1:]]) if is_good else _reason(found, options.patience)
    print(
        f"  {side:<10} {layers:4} blocks {parameters_of(options.hidden, layers) / 1e6:7.0f} M   {found.seconds:5.0f} s   "
        f"{found.peak_bytes / 2**20:6.0f} MiB   {what}",
        file=sys.stderr,
        flush=True,
    )
    return is_good


def _loss(found: Outcome) -> float:
    lines = [line for line in found.output.splitlines() if line.startswith('{"loss"')]
    return float(json.loads(lines[-1])["loss"]) if lines else math.nan


def _reason(found: Outcome, patience: float) -> str:
    if found.was_killed:
        return "no patience left" if found.seconds >= patience else "killed by the kernel"
    lines = [line for line in found.output.splitlines() if line.strip()]
    return lines[-1][:120] if lines else f"ended with {found.returncode}"


def largest(side: str, options: argparse.Namespace) -> int:
    """Return the most blocks that a side trains; 0 for none."""
    start = options.cap if side == "ours" else max(options.start, 1)
    good, bad = 0, options.cap + 1
    layers = start
    while bad - good > max(1, 0.04 * good):
        if attempt(side, layers, options):
            good = layers
        else:
            bad = layers
        layers = min(2 * good, options.cap) if bad > options.cap and good else (good + bad) // 2
        if layers <= good:
            break
    return good


def size_of(text: str) -> int:
    """Return bytes."""
    units = {"MiB": 2**20, "GiB": 2**30}
    return int(float(text[:-3]) * units[text[-3:]])


def main() -> None:
    """Run one attempt, or look for the largest model of each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="2GiB", help="of the kernel, as 2GiB or 700MiB")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--cap", type=int, default=112, help="most blocks that are tried; 112 of 768 are 0.8 billion parameters")
    parser.add_argument("--start", type=int, default=12, help="blocks of the first attempt of all sides but ours")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds of an attempt")
    parser.add_argument("--folder", default=".", help="where the disk tier lies")
    parser.add_argument("--deepspeed", default="", help="folder in which deepspeed is installed; without it that side is left out")
    parser.add_argument("--only", nargs="*", choices=SIDES, default=None)
    parser.add_argument("--one", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run: dict[str, Callable[[], float]] = {
            "ours": lambda: ours(options.hidden, options.layers, size_of(options.limit), options.folder),
            "mapped": lambda: mapped(options.hidden, options.layers, options.folder),
            "plain": lambda: plain(options.hidden, options.layers),
            "trainer": lambda: trainer(options.hidden, options.layers),
            "deepspeed": lambda: deepspeed(options.hidden, options.layers),
        }
        print(json.dumps({"loss": run[options.one]()}), flush=True)
        return
    started = time.monotonic()
    wanted = [side for side in SIDES if side not in UNASKED and (side != "deepspeed" or options.deepspeed)]
    sides = options.only or wanted
    found = {side: largest(side, options) for side in sides}
    print(f"under {options.limit}, {options.hidden} features, {time.monotonic() - started:.0f} s")
    for side, layers in found.items():
        count = parameters_of(options.hidden, layers) if layers else 0
        base = parameters_of(options.hidden, found["plain"]) if found.get("plain") else 0
        ratio = f"   {count / base:.1f} x plain" if base else ""
        print(
            f"{side:<10} {layers:4} blocks   {count / 1e6:7.0f} M parameters{ratio}{' (the cap)' if layers == options.cap else ''}"
        )


if __name__ == "__main__":
    main()
