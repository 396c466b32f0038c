"""Memory of one process that loads its share of a checkpoint and takes a step: modelzoo against transformers' own sharded loading.

    python benchmarks/sharded_load.py [--layers 12] [--rounds 1]

Both sides load the same folder, whose weights are random, on gloo with one thread a process, and take two steps of AdamW in float32
on 4 rows of 64 tokens a process. modelzoo shards block by block (`lay_out` of `from_pretrained`), transformers as its
`DistributedConfig(fsdp_size=N)` says for the family: what its plan names, and otherwise the whole model as one unit. Peaks are the
largest resident size of a process (VmHWM) above what its imports took, the largest over the processes: after loading, when
every value was read once, and after the second step, when the moments were there from its beginning.
"""

import argparse
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sides

ROWS, LENGTH, STEPS = 4, 64, 2
TASKS = {"bert": "masked_lm", "gpt2": "causal_lm", "t5": "seq2seq_lm"}
CLASSES = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel", "t5": "T5ForConditionalGeneration"}


def _folder(family: str, layers: int) -> Path:
    """Return a folder with a checkpoint of the family, made on first use, at the width of its base size."""
    folder = Path(tempfile.gettempdir()) / f"modelzoo-sharded-load-{family}-{layers}"
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    import transformers

    configs = {
        "bert": partial(transformers.BertConfig, num_hidden_layers=layers),
        "gpt2": partial(transformers.GPT2Config, n_layer=layers),
        "t5": partial(
            transformers.T5Config, d_model=768, d_ff=3072, num_heads=12, num_layers=layers // 2, decoder_start_token_id=0
        ),
    }
    torch.manual_seed(0)
    getattr(transformers, CLASSES[family])(configs[family]()).save_pretrained(folder)
    return folder


def _ours(family: str, options: argparse.Namespace) -> sides.Figures:
    import modelzoo.models.auto
    from modelzoo.config import ParallelConfig
    from modelzoo.runtime import clip_grad_norm, connect, layout

    with connect(device="cpu", timeout_s=600) as world:
        modelzoo.models.auto.find_pretrained(_folder(family, options.layers), task=TASKS[family])  # imports the family
        base = sides.peak_rss()
        lay_out = layout(world, ParallelConfig(zero=3))
        model = modelzoo.from_pretrained(_folder(family, options.layers), task=TASKS[family], lay_out=lay_out).train()
        return _figures(model, base, clip_grad_norm)


def _theirs(family: str, options: argparse.Namespace) -> sides.Figures:
    import torch
    import torch.distributed as dist
    import transformers
    from transformers.distributed import DistributedConfig

    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    model_class = getattr(transformers, CLASSES[family])
    base = sides.peak_rss()
    folder, plan = _folder(family, options.layers), DistributedConfig(fsdp_size=int(os.environ["WORLD_SIZE"]))
    model = model_class.from_pretrained(folder, distributed_config=plan, local_files_only=True).train()
    return _figures(model, base, torch.nn.utils.clip_grad_norm_)


def _figures(model: Any, base: int, clip: Any) -> sides.Figures:
    import torch
    from torch.distributed.tensor import DTensor

    values = [value.to_local() if isinstance(value, DTensor) else value for value in model.parameters()]
    for value in values:
        value.detach().sum()  # every page is there now
    loaded = sides.peak_rss() - base
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    ids = torch.randint(5, 30_000, (ROWS, LENGTH), generator=generator)
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {
        "load_peak_mib": loaded / 2**20,
        "step_peak_mib": (sides.peak_rss() - base) / 2**20,
        "loss": float(loss.detach()),
    }


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    lines = []
    for name in [name for name in figures if name.endswith(" modelzoo")]:
        place = name.removesuffix(" modelzoo")
        other = f"{place} transformers"
        for moment in ("load", "step"):
            key = f"{moment}_peak_mib"
            lines.append(
                f"{place:<12} peak after {moment}   modelzoo {sides.median(figures[name], key):6.0f} MiB   transformers "
                f"{sides.median(figures[other], key):6.0f} MiB   ratio {sides.ratio(figures, key, name, other)}"
            )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="blocks; T5 has half of them in each stack")
    named: dict[str, sides.Side] = {}
    for count in (2, 4):
        for name in TASKS:
            named[f"{name} x{count} modelzoo"] = sides.on_ranks(partial(_ours, name), count)
            named[f"{name} x{count} transformers"] = sides.on_ranks(partial(_theirs, name), count)
    for name in TASKS:
        _folder(name, parser.parse_known_args()[0].layers)
    sides.main(named, parser, _report)
