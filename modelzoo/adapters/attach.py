"""Attaching an adapter to a model: what changes, what is frozen, and what is trained whole beside it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch import nn

from modelzoo.adapters.lora import LowRankMap, LowRankTable
from modelzoo.adapters.prefix import find_stack, new_prefix, require_prefix
from modelzoo.adapters.quantized import is_quantized, quantize_base
from modelzoo.adapters.virtual_tokens import VirtualTokens, fill_virtual_tokens, find_table, open_door, require_inputs
from modelzoo.config.adapter import AdapterConfig
from modelzoo.errors import ConfigError, closest, listing
from modelzoo.hub import ModelFacts
from modelzoo.layers import Embedding, Linear
from modelzoo.sharded import full_tensor, is_sharded, write_whole

__all__ = [
    "Adaptable",
    "adapter_of",
    "add_adapter",
    "initialize_adapter",
    "is_adapter_name",
    "low_rank_parts",
    "new_low_rank",
    "remove_adapter",
    "trained_parts",
]

LABELLED = ("classification", "token_classification", "question_answering", "multiple_choice")
"""Tasks whose head is of the data at hand, so that it is trained whole beside any adapter."""

LowRank = LowRankMap | LowRankTable


class Adaptable(Protocol):
    """What a model must have: every model of the zoo does."""

    def facts(self) -> ModelFacts:
        """Return what a checkpoint needs to know of the model."""

    def shard_units(self) -> list[nn.Module]:
        """Return the blocks in forward order."""


def adapter_of(model: nn.Module) -> AdapterConfig | None:
    """Return the config of a model's adapter, or None for a plain model."""
    return getattr(model, "adapter_config", None)


def is_adapter_name(name: str) -> bool:
    """Return whether a parameter's name is of an adapter and not of the model."""
    return "adapter" in name.split(".")


def add_adapter(model: nn.Module, config: AdapterConfig) -> None:
    """Freeze a model and attach an adapter, in place; outputs stay as they are until it is trained, but for those of a prompt.

    Args:
        model: A model of the zoo, with its values or on meta; before `modelzoo.runtime.prepare`.
        config: Which adapter.

    Raises:
        ConfigError: The config names no method, the model has an adapter, is sharded, or lacks something that the config names.
    """
    if config.method is None:
        raise ConfigError("adapter.method is null, which trains the whole model; choose lora, dora, bias, prompt or prefix")
    if adapter_of(model) is not None:
        raise ConfigError(f"{type(model).__name__} has an adapter; merge it with merge_adapter, or load the base again")
    if any(is_sharded(parameter) for parameter in model.parameters()):
        raise ConfigError(f"{type(model).__name__} is sharded; attach adapters before modelzoo.runtime.prepare")
    facts = cast(Adaptable, model).facts()
    task = facts.task
    whole = [*config.train_also, *(["head"] if task in LABELLED else [])]
    if config.method == "prompt":
        require_inputs(model, task, config)
    if config.method == "prefix":
        require_prefix(model, facts.family, task, config)
    trained = _named_parts(model, whole)
    attached = _find_targets(model, config, trained) if config.is_low_rank else {}
    size = sum(new_low_rank(module, config, device=torch.device("meta"))[1] for module in attached.values())
    total = sum(parameter.numel() for parameter in model.parameters())
    if size >= total:
        raise ConfigError(f"adapter.r={config.r} gives {size:,} values to a model of {total:,}; use a smaller r or fewer targets")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in attached.values():
        module.adapter = new_low_rank(module, config)[0]
    if config.method == "bias":
        _train_biases(model, config)
    if config.method == "prompt":
        _, table = find_table(model)
        prompt = VirtualTokens(config.num_virtual_tokens, table)
        table.adapter = prompt.train(model.training)
        open_door(model, prompt)
    if config.method == "prefix":
        _, stack = find_stack(model)
        stack.adapter = new_prefix(stack, config.num_virtual_tokens, is_projected=config.prefix_projection)
        vars(model)["num_virtual_tokens"] = config.num_virtual_tokens
    for module in trained.values():
        module.requires_grad_(True)
    if config.base is not None:
        quantize_base(model, config.base)
    for _, part in low_rank_parts(model):
        part.train(model.training)
    vars(model)["adapter_config"] = config
    if not any(parameter.is_meta for parameter in model.parameters()):
        initialize_adapter(model, only_lengths=True)


def remove_adapter(model: nn.Module) -> None:
    """Take a model's adapter away and let all of its own values be trained again; what was trained whole stays as it is.

    Raises:
        ConfigError: Its base is stored in fewer bits than a float has, and cannot be trained.
    """
    if is_quantized(model):
        raise ConfigError(f"{type(model).__name__}: its base is stored in fewer bits (adapter.base); load the base again")
    for module in model.modules():
        if getattr(module, "adapter", None) is not None:
            cast(Any, module).adapter = None
    for name in ("adapter_config", "virtual_tokens", "num_virtual_tokens"):
        vars(model).pop(name, None)
    model.requires_grad_(True)


def low_rank_parts(model: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """Yield (name of the map or table, its change of low rank)."""
    for name, module in model.named_modules():
        part = getattr(module, "adapter", None)
        if isinstance(part, LowRank):
            yield name, part


def trained_parts(model: nn.Module) -> dict[str, int]:
    """Return how many values of what are trained: "adapter", and the names of parts of the model that are trained whole."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = "adapter" if is_adapter_name(name) else name.partition(".")[0]
            counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


@torch.no_grad()
def initialize_adapter(model: nn.Module, *, only_lengths: bool = False) -> None:
    """Give a new adapter its first values, once the model has its own. Collective on a sharded model.

    Args:
        model: With an adapter, plain or laid out over ranks.
        only_lengths: Whether only what depends on the model's values is filled: DoRA's lengths, and virtual tokens.
    """
    modules = dict(model.named_modules())
    if not only_lengths:
        for module in modules.values():
            if getattr(module, "is_adapter", False) and hasattr(module, "init_weights"):
                cast(Callable[[], None], module.init_weights)()
    for name, part in low_rank_parts(model):
        if isinstance(part, LowRankMap) and part.magnitude is not None:
            weight = full_tensor(cast(torch.Tensor, modules[name].weight)).detach()
            lengths = torch.linalg.norm(weight.to(part.magnitude.dtype), dim=1)
            magnitude = part.magnitude
            write_whole(magnitude, lengths)
    fill_virtual_tokens(model)


def new_low_rank(module: nn.Module, config: AdapterConfig, *, device: torch.device | None = None) -> tuple[LowRank, int]:
    """Return a new change of a map or table and the number of its values.

    Args:
        module: The map or table.
        config: Rank, scale and so on.
        device: Of the parameters; None for that of the module's own.
    """
    part: LowRank
    if isinstance(module, Embedding):
        device = module.weight.device if device is None else device
        part = LowRankTable(module.num_embeddings, module.embedding_dim, config.r, config.scale, device=device)
    else:
        assert isinstance(module, Linear)
        part = LowRankMap(
            module.in_features,
            module.out_features,
            config.r,
            config.scale,
            dropout=config.dropout,
            has_magnitude=config.method == "dora",
            device=module.weight.device if device is None else device,
        )
    return part, sum(parameter.numel() for parameter in part.parameters())


def _train_biases(model: nn.Module, config: AdapterConfig) -> None:
    """Let the biases be trained (Ben Zaken et al., 2022)."""
    biases = [parameter for name, parameter in model.named_parameters() if name.rpartition(".")[2] == "bias"]
    if not biases:
        raise ConfigError(f"adapter.method={config.method}: {type(model).__name__} has no biases; use lora")
    for bias in biases:
        bias.requires_grad_(True)


def _named_parts(model: nn.Module, names: Collection[str]) -> dict[str, nn.Module]:
    """Return the parts of a model with these names, or last components of names.

    Raises:
        ConfigError: One is not there, or has no parameters.
    """
    found: dict[str, nn.Module] = {}
    for wanted in names:
        some = {name: module for name, module in model.named_modules() if _is_named(name, wanted)}
        some = {name: module for name, module in some.items() if next(module.parameters(), None) is not None}
        if not some:
            known = [name for name, module in model.named_modules() if name and next(module.parameters(), None) is not None]
            raise ConfigError(f"adapter.train_also: {wanted!r} is no part of this {type(model).__name__}{_hint(wanted, known)}")
        found |= some
    return found


def _find_targets(model: nn.Module, config: AdapterConfig, trained: dict[str, nn.Module]) -> dict[str, Any]:
    """Return the maps and tables that change, by name.

    Raises:
        ConfigError: A target matches nothing, or something that has no change of low rank; all are listed.
    """
    inside = {id(part) for module in trained.values() for part in module.modules()}
    known: dict[str, nn.Module] = {name: module for name, module in model.named_modules() if isinstance(module, Linear | Embedding)}
    if config.targets == ("auto",):
        blocks = {id(part) for unit in cast(Adaptable, model).shard_units() for part in unit.modules()}
        maps = {name: module for name, module in known.items() if isinstance(module, Linear) and id(module) in blocks}
        found = {name: each for name, each in maps.items() if min(each.in_features, each.out_features) > config.r}
        if not found:
            raise ConfigError(f"adapter.targets=auto: no map of the blocks is wider than r={config.r}; use a smaller r")
        return found
    chosen: dict[str, Any] = {}
    problems: list[str] = []
    for wanted in config.targets:
        some = {name: module for name, module in known.items() if _is_named(name, wanted)}
        problems += _unfit_targets(model, config, wanted, some, inside)
        chosen |= some
    if problems:
        raise ConfigError(f"adapter.targets of this {type(model).__name__}:\n{listing(problems)}")
    return chosen


def _unfit_targets(
    model: nn.Module, config: AdapterConfig, wanted: str, some: dict[str, nn.Module], inside: set[int]
) -> Iterator[str]:
    """Yield what is wrong with a target."""
    if not some:
        others = [type(module).__name__ for name, module in model.named_modules() if _is_named(name, wanted)]
        known = sorted({name.rpartition(".")[2] for name, each in model.named_modules() if isinstance(each, Linear | Embedding)})
        if others:
            yield f"{wanted}: is a {others[0]}, which has no change of low rank; expected maps or tables: {', '.join(known)}"
        else:
            yield f"{wanted}: no map or table has this name{_hint(wanted, known)}"
    for name, module in some.items():
        if id(module) in inside:
            yield f"{name}: is trained whole (train_also, or the head of the task); remove it from one of the two"
        elif isinstance(module, Embedding) and config.method == "dora":
            yield f"{name}: dora changes maps, found a table; use lora"


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")


def _hint(wanted: str, known: Sequence[str]) -> str:
    near = closest(wanted, known)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known[:20])}"
