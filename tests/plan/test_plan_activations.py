"""The closed forms of activations against what a forward really leaves alive: within 10 % (they are within 5)."""

import dataclasses

import pytest
import torch
from counted import kept_bytes
from torch import Tensor

from modelzoo.config import ParallelConfig
from modelzoo.layers import skip_initialization
from modelzoo.models.auto import FAMILIES, model_class
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.models.gpt2 import GPT2, GPT2Config
from modelzoo.models.llama import Llama, LlamaConfig
from modelzoo.models.mixtral import Mixtral, MixtralConfig
from modelzoo.models.model import Model
from modelzoo.models.t5 import T5, T5Config
from modelzoo.plan import KNOWN, plan_workload
from modelzoo.plan.activations import unit_activations
from modelzoo.plan.head_activations import head_activations
from modelzoo.plan.parts import read_parts
from modelzoo.plan.workload import Workload
from modelzoo.runtime.recompute import recompute

SIZES = {"vocab_size": 200, "hidden_size": 64, "num_layers": 4, "num_heads": 4}
SHAPES = {"mixed": (64, 40, 24, 64), "one": (100,), "many": (16,) * 12}
TASKS = {"bert": "classification", "gpt2": "causal_lm", "t5": "seq2seq_lm", "llama": "causal_lm", "mixtral": "causal_lm"}


def build(name: str, dropout: float, task: str | None = None) -> Model:
    torch.manual_seed(0)
    wanted: object = task or TASKS[name]
    if name == "bert":
        config = BertConfig(
            **SIZES, intermediate_size=256, max_positions=128, type_vocab_size=2, hidden_dropout=dropout, attention_dropout=dropout
        )
        model: Model = Bert(config, wanted)
    elif name == "gpt2":
        drops = dict.fromkeys(("embedding_dropout", "hidden_dropout", "attention_dropout"), dropout)
        model = GPT2(GPT2Config(**SIZES, intermediate_size=256, max_positions=128, **drops), wanted)
    elif name == "t5":
        model = T5(T5Config(**SIZES, num_decoder_layers=2, head_size=16, intermediate_size=256, dropout=dropout), wanted)
    else:
        options = {"num_key_value_heads": 2, "head_size": 16, "intermediate_size": 192, "max_positions": 128}
        model = Llama(LlamaConfig(**SIZES, **options), wanted) if name == "llama" else mixture(options)
    model.init_weights()
    return model


def mixture(options: dict[str, int]) -> Model:
    return Mixtral(MixtralConfig(**SIZES, **options, num_experts=4, experts_per_token=2), "causal_lm")


def batch_of(model: Model, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    rows, width = len(lengths), max(lengths)
    ids = torch.randint(3, 200, (rows, width))
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    if model.task == "classification":
        batch["labels"] = torch.zeros(rows, dtype=torch.long)
    elif model.task == "masked_lm":
        batch["labels"] = torch.full_like(ids, -100)
        batch["labels"][:, ::7] = ids[:, ::7]  # 15 % of the tokens, as the formula says
    elif model.task == "seq2seq_lm":
        batch |= {"labels": ids, "decoder_attention_mask": mask}
    else:
        batch["labels"] = ids.masked_fill(mask == 0, -100)
    return batch


def compare(model: Model, lengths: tuple[int, ...], how: str, precision: str = "float32") -> tuple[int, int]:
    if precision != "float32":
        model = model.to(getattr(torch, precision))
    recompute(model.shard_units(), how)
    counted = kept_bytes(model, batch_of(model, lengths))
    parts, work = read_parts(model), Workload(lengths=lengths, precision=precision, recompute=how)
    ends = head_activations(parts, work)
    return sum(unit.kept for unit in unit_activations(parts, work)) + sum(end.kept for end in ends), counted


@pytest.mark.parametrize("how", ["none", "blocks", "selective", "every 2"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_activations_are_those_counted(name: str, how: str) -> None:
    for dropout in (0.1, 0.0) if name != "llama" else (0.0,):
        predicted, counted = compare(build(name, dropout), SHAPES["mixed"], how)
        assert predicted == pytest.approx(counted, rel=0.1), f"dropout {dropout}"


@pytest.mark.parametrize("shape", ["one", "many"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_activations_of_other_batch_shapes(name: str, shape: str) -> None:
    predicted, counted = compare(build(name, 0.1), SHAPES[shape], "none")
    assert predicted == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_activations_in_bfloat16(name: str) -> None:
    predicted, counted = compare(build(name, 0.1), (24, 16), "none", "bfloat16")
    assert predicted == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("how", ["none", "every 2"])
def test_activations_of_a_masked_language_model(how: str) -> None:
    predicted, counted = compare(build("bert", 0.1, "masked_lm"), (56, 56), how)
    assert predicted == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("family", ["roberta", "electra", "opt", "qwen3", "minicpm", "mt5", "cpm1", "cpm2", "cpm3", "cpmant"])
def test_activations_of_other_families(family: str) -> None:
    cls = model_class(family)
    known = {field.name for field in dataclasses.fields(cls.config_class)}
    sizes = SIZES | {"intermediate_size": 192, "max_positions": 128, "num_decoder_layers": 2, "head_size": 16, "prompt_length": 4}
    sizes |= {"embedding_size": 64, "word_size": 32, "num_key_value_heads": 2}
    config = cls.config_class(**{name: value for name, value in sizes.items() if name in known})
    model = cls(config, next(task for task in ("causal_lm", "seq2seq_lm", "classification") if task in cls.tasks))
    model.init_weights()
    predicted, counted = compare(model, SHAPES["mixed"], "none")
    assert predicted == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_planned(family: str) -> None:
    cls = model_class(family)
    with torch.device("meta"), skip_initialization():
        model = cls(cls.config_class(), cls.tasks[0])
    parts = read_parts(model)
    assert parts.numel == sum(parameter.numel() for parameter in model.parameters())
    plan = plan_workload(parts, Workload(lengths=(64, 32)), ParallelConfig(data_shard=2, zero=3), KNOWN["a100-80gb"], ranks=2)
    assert plan.peak_bytes > 8 * parts.numel
    assert 0 < plan.time.step < 60


def test_activations_of_a_mixture_of_experts() -> None:
    predicted, counted = compare(build("mixtral", 0.0), SHAPES["mixed"], "none")
    assert predicted == pytest.approx(counted, rel=0.1)


def test_kinds_add_up_to_what_is_kept() -> None:
    parts = read_parts(build("llama", 0.0))
    for how in ("none", "blocks", "selective", "every 2", "products 2"):
        for unit in unit_activations(parts, Workload(lengths=(32, 32), recompute=how)):
            assert sum(unit.by_kind.values()) == unit.kept


def test_a_tensor_axis_divides_what_it_cuts() -> None:
    parts, work = read_parts(build("llama", 0.0)), Workload(lengths=(32, 32))
    (whole, *_), (half, *_) = unit_activations(parts, work), unit_activations(parts, work, tensor=2)
    assert half.by_kind["network"] * 2 == whole.by_kind["network"]
    assert half.by_kind["norms"] == whole.by_kind["norms"]
