"""A training step of a language model on texts of unequal length: modelzoo against transformers with dynamic padding.

    python benchmarks/lm_step.py gpt2 [--batch 8] [--longest 256] [--steps 4] [--rounds 3]
    python benchmarks/lm_step.py t5

Random weights at GPT-2-small's (vocabulary 50,257) or T5-small's sizes, float32, the same ids on both sides, forward, backward and
fused AdamW. Lengths are drawn evenly from an eighth of the longest up to the longest. The first step is left out. The peak is the
process's largest resident size, less what it was when the model and the optimizer's moments were in place.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

import sides


def _batch(options: argparse.Namespace, vocab_size: int) -> dict[str, object]:
    import torch

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(options.longest // 8, options.longest + 1, (options.batch,), generator=generator)
    width = int(lengths.max())
    mask = (torch.arange(width) < lengths.unsqueeze(1)).long()
    ids = torch.randint(2, vocab_size, mask.shape, generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def _measure(
    options: argparse.Namespace, model: object, loss_of: Callable[[dict[str, object]], object], vocab: int
) -> sides.Figures:
    import torch

    assert isinstance(model, torch.nn.Module)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    base = sides.peak_rss()
    batch = _batch(options, vocab)
    tokens = int(batch["attention_mask"].sum())  # type: ignore[attr-defined]  # a tensor

    def step() -> None:
        loss = loss_of(batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    start = time.perf_counter()
    for _ in range(options.steps):
        step()
    seconds = (time.perf_counter() - start) / options.steps
    peak = sides.peak_rss() - base
    return {"tokens_s": tokens / seconds, "step_s": seconds, "peak_mib": peak / 2**20}


def _modelzoo(options: argparse.Namespace) -> sides.Figures:
    import modelzoo

    if options.model == "gpt2":
        config = modelzoo.GPT2Config()
        model = modelzoo.GPT2.from_config(config, task="causal_lm")
    else:
        config = modelzoo.T5Config()
        model = modelzoo.T5.from_config(config, task="seq2seq_lm")
    return _measure(options, model, lambda batch: model(**batch).loss, config.vocab_size)


def _transformers(options: argparse.Namespace) -> sides.Figures:
    import transformers

    if options.model == "gpt2":
        config = transformers.GPT2Config()
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.T5Config(decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration(config)
    return _measure(options, model, lambda batch: model(**batch).loss, config.vocab_size)


def _report(figures: Mapping[str, Sequence[sides.Figures]]) -> list[str]:
    lines = [f"{name:<14} {sides.median(rounds, 'tokens_s'):8.1f} real tokens/s" for name, rounds in figures.items()]
    return [
        *lines,
        f"tokens/s, modelzoo / transformers                  {sides.ratio(figures, 'tokens_s', 'modelzoo', 'transformers')}",
        f"peak above model and optimizer, modelzoo / transf. {sides.ratio(figures, 'peak_mib', 'modelzoo', 'transformers')}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["gpt2", "t5"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    sides.main({"modelzoo": _modelzoo, "transformers": _transformers}, parser, _report)
