"""Tiny models of five families with a vocabulary of 7, and training steps of them on one process and on any layout."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from modelzoo.config.parallel import ParallelConfig
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.models.cpm1 import CPM1, CPM1Config
from modelzoo.models.gpt2 import GPT2, GPT2Config
from modelzoo.models.llama import Llama, LlamaConfig
from modelzoo.models.model import Model
from modelzoo.models.t5 import T5
from modelzoo.models.t5_config import T5Config
from modelzoo.runtime import World, full_tensor, prepare
from modelzoo.training.loss_scale import LossScale
from modelzoo.training.optimizer import build_optimizer
from modelzoo.training.step import MicroBatch, take_step

ROWS, LENGTH, VOCABULARY = 9, 6, 7
EPS = 1e-5
"""Of AdamW. The bias of a key adds the same to every score of a query, so its gradient is zero up to rounding (1e-9). With AdamW's
usual 1e-8 it would be moved by a tenth of the rate in a direction that is the rounding's."""
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def _bert(tied: bool) -> Model:
    return Bert.from_config(BertConfig(**SIZES, **NO_DROPOUT, max_positions=8, tie_word_embeddings=tied), "masked_lm")


def _gpt2(tied: bool) -> Model:
    config = GPT2Config(**SIZES, **NO_DROPOUT, embedding_dropout=0.0, max_positions=8, tie_word_embeddings=tied)
    return GPT2.from_config(config, "causal_lm")


def _llama(tied: bool) -> Model:
    config = LlamaConfig(**SIZES, num_key_value_heads=2, head_size=4, tie_word_embeddings=tied, max_positions=8)
    return Llama.from_config(config, "causal_lm")


def _t5(tied: bool, activation: str = "relu") -> Model:
    sizes = {**SIZES, "head_size": 4, "num_decoder_layers": 2, "num_buckets": 8, "max_distance": 12, "initializer_range": 0.1}
    return T5.from_config(T5Config(**sizes, dropout=0.0, tie_word_embeddings=tied, activation=activation), "seq2seq_lm")


def _cpm1(tied: bool) -> Model:
    config = CPM1Config(**SIZES, head_size=4, num_buckets=8, max_distance=12, tie_word_embeddings=tied, initializer_range=0.3)
    return CPM1.from_config(config, "causal_lm")


BUILDERS: dict[str, Callable[[bool], Model]] = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "t5": _t5, "cpm1": _cpm1}
MODELS = [(name, tied) for name in BUILDERS for tied in (True, False)]
LONG_RUN_BUILDERS = {**BUILDERS, "t5_smooth": partial(_t5, activation="gelu_new")}
"""With a T5 for long runs: rounding may put a value of 1e-8 on the other side of the kink of relu, and then its gradient differs by
a whole."""


@dataclass(frozen=True)
class Point:
    """One place of the grid."""

    model: str
    tied: bool
    config: ParallelConfig
    accumulation: int

    def __str__(self) -> str:
        chosen = {name: value for name, value in self.config if name not in ("timeout_s", "ranks", "compile")}
        return f"{self.model} tied={self.tied} accumulation={self.accumulation} {chosen}"


@dataclass(frozen=True)
class Trained:
    """What some steps came to."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]


def build(model: str, tied: bool, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    built = LONG_RUN_BUILDERS[model](tied).train()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.endswith("bias"):  # zeros would hide a bias that is added once a rank
                parameter.normal_(std=0.1)
    return built


def global_batch(step: int) -> dict[str, Tensor]:
    """Rows of unequal lengths and numbers of targets; the last one has no target at all."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(2, VOCABULARY, (ROWS, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    is_target = (torch.rand(ROWS, LENGTH, generator=generator) < 0.6) & (mask == 1)
    is_target[:, 1] = True
    is_target[-1] = False
    labels = torch.where(is_target, torch.randint(0, VOCABULARY, ids.shape, generator=generator), -100)
    return {"input_ids": torch.where(mask == 1, ids, 0), "attention_mask": mask, "labels": labels}


def count(labels: Tensor, model: str) -> int:
    """Return the targets of some rows; a decoder predicts what follows its first token."""
    return int((labels[:, 1:] if model in ("gpt2", "llama", "cpm1") else labels).ne(-100).sum())


def micro_batches(batch: dict[str, Tensor], model: str, rank: int, size: int, accumulation: int) -> list[MicroBatch]:
    """Cut rank `rank`'s rows of a global batch into unequal pieces; a piece without rows is a stand-in that counts nothing."""
    own = torch.arange(ROWS)[rank::size]
    pieces = [own] if accumulation == 1 else [own[:1], own[1:], own[:0]][:accumulation]
    made = []
    for piece in pieces:
        rows = {name: values[piece if len(piece) else slice(0, 1)] for name, values in batch.items()}
        targets = count(rows["labels"], model) if len(piece) else 0
        made.append(MicroBatch(rows, tuple(piece.tolist()), targets, int(rows["attention_mask"].sum())))
    return made


def train(
    model: Model, name: str, world: World, *, steps: int = 4, accumulation: int = 1, loss_scale: LossScale | None = None
) -> Trained:
    """Take AdamW steps with clipping as training takes them."""
    optimizer = build_optimizer(model, lr=1e-3, eps=EPS)
    losses, norms = [], []
    for step in range(steps):
        batch = global_batch(step)
        batches = micro_batches(batch, name, world.data_rank, world.data_size, accumulation)
        targets = count(batch["labels"], name)
        result = take_step(
            model, optimizer, batches, num_targets=targets, clip_norm=0.5, world=world, step=step, loss_scale=loss_scale
        )
        losses.append(result.loss)
        norms.append(result.grad_norm)
    parameters = {key: full_tensor(parameter.detach()).clone() for key, parameter in model.named_parameters()}
    return Trained(losses, norms, parameters)


@cache
def train_alone(name: str, tied: bool, steps: int = 4) -> Trained:
    """The same steps on one plain process, each of one forward."""
    world = World(0, 1, 0, torch.device("cpu"), 60)
    return train(build(name, tied), name, world, steps=steps)


def train_laid_out(point: Point, world: World, steps: int = 4) -> Trained:
    model = prepare(build(point.model, point.tied), world, point.config)
    return train(model, point.model, world, steps=steps, accumulation=point.accumulation)


def difference(found: Trained, expected: Trained, tolerance: float = 1e-6) -> str:
    """Return what differs, or nothing."""
    pairs = zip(found.losses + found.norms, expected.losses + expected.norms, strict=True)
    worst_loss = max(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)
    assert found.parameters.keys() == expected.parameters.keys()
    distances = {name: float((found.parameters[name] - value).abs().max()) for name, value in expected.parameters.items()}
    name, worst = max(distances.items(), key=lambda item: item[1])
    if worst_loss <= tolerance and worst <= tolerance:
        return ""
    return f"losses and norms differ by {worst_loss:.1e}, {name} by {worst:.1e}"
