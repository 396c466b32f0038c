"""A training step of a BERT on one process and on two: modelzoo's layouts against a plain loop, Accelerate's FSDP2 and DeepSpeed.

    python benchmarks/layouts.py [--layers 12] [--hidden 768] [--batch 8] [--length 128] [--steps 3] [--rounds 2]
    python benchmarks/layouts.py --only plain prepared sharded          # one process: what the engine costs

One process has two threads, two processes have one each; every side does the same work: the global batch, forward, backward,
clipping by 1.0 and AdamW, float32, on random ids without padding. `plain` is a loop without any runtime; `prepared` the same model
after `runtime.prepare` on one process, `sharded` with the sharded engine forced on it. `zero0`, `zero2` and `zero3` are two
processes; `ddp` is transformers' model under Accelerate, which takes DistributedDataParallel on CPUs whatever is asked of it;
`fsdp2` the same model under torch's `fully_shard`, layer by layer, which is what Accelerate's FSDP2 would run; `deepspeed` the same
under ZeRO stage 3 on gloo. The peak is the largest resident size of one process. DeepSpeed has to be installed by hand; without it
its side is left out.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import sides

SEED = 0


def _ids(options: argparse.Namespace, rank: int, count: int) -> Any:
    import torch

    ids = torch.randint(5, 30_000, (options.batch, options.length), generator=torch.Generator().manual_seed(SEED))
    return ids[rank::count].contiguous()


def _config(options: argparse.Namespace) -> dict[str, int]:
    return {
        "hidden_size": options.hidden,
        "intermediate_size": 4 * options.hidden,
        "num_heads": options.hidden // 64,
        "num_layers": options.layers,
    }


def _ours(options: argparse.Namespace) -> Any:
    import torch

    from modelzoo import Bert, BertConfig

    torch.manual_seed(SEED)
    config = BertConfig(vocab_size=30_522, hidden_dropout=0.0, attention_dropout=0.0, **_config(options))
    return Bert.from_config(config, "masked_lm").train()


def _theirs(options: argparse.Namespace) -> Any:
    import torch
    import transformers

    torch.manual_seed(SEED)
    config = transformers.BertConfig(
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_attention_heads=options.hidden // 64,
        num_hidden_layers=options.layers,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config).train()


def _timed(options: argparse.Namespace, step: Callable[[], float]) -> sides.Figures:
    step()
    start = time.perf_counter()
    for _ in range(options.steps):
        loss = step()
    seconds = (time.perf_counter() - start) / options.steps
    return {"step_s": seconds, "peak_mib": sides.peak_rss() / 2**20, "loss": loss}


def _one_process(options: argparse.Namespace, lay_out: Callable[[Any], Any]) -> sides.Figures:
    import torch

    from modelzoo.runtime import clip_grad_norm

    torch.set_num_threads(2)
    model = lay_out(_ours(options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = _ids(options, 0, 1)

    def step() -> float:
        loss = model(ids, labels=ids).loss
        loss.backward()
        if lay_out is _as_it_is:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return _timed(options, step)


def _as_it_is(model: Any) -> Any:
    return model


def _plain(options: argparse.Namespace) -> sides.Figures:
    return _one_process(options, _as_it_is)


def _prepared(options: argparse.Namespace) -> sides.Figures:
    from modelzoo.runtime import connect, prepare

    with connect(device="cpu") as world:
        return _one_process(options, lambda model: prepare(model, world))


def _sharded(options: argparse.Namespace) -> sides.Figures:
    with patch("modelzoo.runtime.prepare.needs_mesh", lambda *_, **__: True):  # which one process does not need
        return _prepared(options)


def _zero(options: argparse.Namespace, level: int) -> sides.Figures:
    import torch

    from modelzoo.config import ParallelConfig
    from modelzoo.runtime import clip_grad_norm, connect, prepare

    with connect(device="cpu", timeout_s=600) as world:
        model = prepare(_ours(options), world, ParallelConfig(zero=level))  # type: ignore[arg-type]  # 2 or 3
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        ids = _ids(options, world.rank, world.world_size)

        def step() -> float:
            loss = model(ids, labels=ids).loss / world.world_size
            loss.backward()
            clip_grad_norm(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return world.sum([float(loss.detach())])[0]

        return _timed(options, step)


def _ddp(options: argparse.Namespace) -> sides.Figures:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = _theirs(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    ids = _ids(options, accelerator.process_index, accelerator.num_processes)

    def step() -> float:
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(accelerator.reduce(loss.detach(), "mean"))

    return _timed(options, step)


def _fsdp2(options: argparse.Namespace) -> sides.Figures:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = _theirs(options)
    for layer in model.bert.encoder.layer:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = _ids(options, dist.get_rank(), dist.get_world_size())

    def step() -> float:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    return _timed(options, step)


def _deepspeed(options: argparse.Namespace) -> sides.Figures:
    import deepspeed
    import torch
    import torch.distributed as dist

    deepspeed.init_distributed("gloo")
    model = _theirs(options)
    settings = {
        "train_micro_batch_size_per_gpu": options.batch // dist.get_world_size(),
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    ids = _ids(options, dist.get_rank(), dist.get_world_size())

    def step() -> float:
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    return _timed(options, step)


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    lines = [
        f"{name:<11} {sides.median(rounds, 'step_s'):7.2f} s a step   peak {sides.median(rounds, 'peak_mib'):7.0f} MiB a process   "
        f"loss {rounds[0]['loss']:.6f}"
        for name, rounds in figures.items()
    ]
    pairs = [
        ("one process, speed of prepared / plain", "plain", "prepared"),
        ("one process, speed of sharded / plain", "plain", "sharded"),
        ("two processes, speed of zero0 / plain", "plain", "zero0"),
        ("two processes, speed of zero2 / plain", "plain", "zero2"),
        ("two processes, speed of zero3 / plain", "plain", "zero3"),
        ("zero0's speed / ddp's", "ddp", "zero0"),
        ("zero2's speed / ddp's", "ddp", "zero2"),
        ("zero3's speed / fsdp2's", "fsdp2", "zero3"),
        ("zero3's speed / deepspeed's", "deepspeed", "zero3"),
    ]
    lines += [f"{text:<42} {sides.ratio(figures, 'step_s', above, below)}" for text, above, below in pairs]
    lines += [
        f"{'zero3 peak / ' + other:<42} {sides.ratio(figures, 'peak_mib', 'zero3', other)}"
        for other in ("ddp", "fsdp2", "deepspeed")
    ]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch", type=int, default=8, help="rows of the global batch, an even number")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--steps", type=int, default=3, help="steps that are timed, after one that is not")
    named: dict[str, sides.Side] = {
        "plain": _plain,
        "prepared": _prepared,
        "sharded": _sharded,
        "zero0": sides.on_ranks(lambda options: _zero(options, 0)),
        "zero2": sides.on_ranks(lambda options: _zero(options, 2)),
        "zero3": sides.on_ranks(lambda options: _zero(options, 3)),
        "ddp": sides.on_ranks(_ddp),
        "fsdp2": sides.on_ranks(_fsdp2),
    }
    if find_spec("deepspeed") is not None:
        named["deepspeed"] = sides.on_ranks(_deepspeed)
    sides.main(named, parser, _report)
