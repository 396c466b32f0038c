"""Trained vectors before every text (prompt tuning, Lester et al., 2021).

The token table looks them up: at the model's door each text is given as many more ids, which stand for them, and every input that
has a value a token is made as much longer. So the blocks see longer texts and nothing else, padding is dropped as ever, and scores
of the vectors are taken off again. The vectors get the positions before those of the text, as in PEFT.
"""

import inspect
from collections.abc import Mapping
from types import MethodType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from modelzoo.config.adapter import AdapterConfig
from modelzoo.errors import ConfigError, DataError
from modelzoo.layers import Embedding
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.sharded import full_tensor, write_whole

__all__ = ["VirtualTokens", "fill_virtual_tokens", "find_table", "open_door", "require_inputs", "virtual_tokens_of"]

IGNORED = -100
_FILLS = {"attention_mask": 1, "token_type_ids": 0, "labels": IGNORED}
"""Inputs with a value a token of the text -> the value of a virtual token."""
_OTHERS = ("input_ids", "position_ids", "start_positions", "end_positions", "caches", "decoder_input_ids", "decoder_attention_mask")
_A_SCORE_A_TOKEN = ("base", "encoder", "causal_lm", "token_classification", "question_answering")
_OF_THE_ENCODER = ("encoder", "token_classification")
_SCORES = ("logits", "last_hidden_state", "start_logits", "end_logits")


class VirtualTokens(nn.Module):
    """N vectors that stand before every text, as what its token table looks up.

    Args:
        num_tokens: N, at least 1.
        table: The token table.
        device: Of the vectors; None for that of the table.
    """

    is_adapter: ClassVar[bool] = True
    """Its tensors are no part of the model's own files."""
    tensor_parts: ClassVar[Mapping[str, Mapping[str, int]]] = {}
    """The vectors stay whole where the table is cut: the rank that has the row of the ids that stand for them gives them."""

    def __init__(self, num_tokens: int, table: Embedding, *, device: torch.device | None = None) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.stand_in = 1 if table.padding_idx == 0 and table.num_embeddings > 1 else 0
        """Id that stands for a vector where a model looks at ids: no padding."""
        device = table.weight.device if device is None else device
        self.vectors = nn.Parameter(torch.empty(num_tokens, table.embedding_dim, device=device))
        self.pending: list[tuple[Tensor, Tensor | None]] = []
        """Of the text that is under way: (B, T) int64 number of each token's vector, -1 for its own row; (B, T) mask, or None."""
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the vectors from N(0, std²), until rows of the table are known."""
        nn.init.normal_(self.vectors, std=std)

    def forward(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Return the rows of a text, with the vectors where they stand.

        Args:
            ids: (tokens,) or (B, T) int.
            rows: (..., D) float.
        """
        if not self.pending:
            return rows  # of a decoder, or of a token that follows
        numbers, mask = self.pending.pop()
        if ids.dim() == 1:
            numbers = numbers.flatten() if mask is None else numbers[mask.bool()]
        numbers = numbers.flatten()
        places = (numbers >= 0).nonzero().squeeze(1)
        flat = rows.flatten(0, -2).index_copy(0, places, self.vectors[numbers[places]].to(rows.dtype))
        return flat.view_as(rows)

    def announce(self, ids: Tensor, mask: Tensor | None, *, after_padding: bool) -> tuple[Tensor, Tensor | None]:
        """Return a text's ids and mask with those of the vectors, which are given where the table looks these ids up next.

        Args:
            ids: (B, T) int64.
            mask: (B, T), non-zero where there is a token; None when all are. A row without tokens gets no vectors.
            after_padding: Whether padding on the left stays on the left of the vectors.
        """
        if ids.dim() != 2:
            raise DataError(f"input_ids must be (batch, tokens), found shape {tuple(ids.shape)}; add the missing dimension")
        count = self.num_tokens
        longer = torch.cat([ids.new_full((len(ids), count), self.stand_in), ids], dim=1)
        numbers = torch.arange(longer.shape[1], device=ids.device).expand_as(longer)
        wide = None
        if mask is not None and mask.shape == ids.shape:
            wide = torch.cat([mask.new_ones(len(ids), count) * mask.bool().any(1, keepdim=True), mask], dim=1)
            if after_padding:
                skipped = (mask.bool().cumsum(1) == 0).sum(1, keepdim=True)
                wide = torch.where(numbers < skipped, torch.zeros_like(wide), torch.ones_like(wide))
                numbers = numbers - skipped
        elif mask is not None:
            raise DataError(f"attention_mask must have the shape of input_ids, {tuple(ids.shape)}, found {tuple(mask.shape)}")
        self.pending[:] = [(numbers.where((numbers >= 0) & (numbers < count), -1), wide)]
        return longer, wide

    def extra_repr(self) -> str:
        """What `print` shows of this adapter."""
        return f"{self.num_tokens} virtual tokens"


def virtual_tokens_of(model: nn.Module) -> VirtualTokens | None:
    """Return the vectors that stand before a model's texts; None for none."""
    return vars(model).get("virtual_tokens")


def find_table(model: nn.Module) -> tuple[str, Embedding]:
    """Return a model's token table and its name.

    Raises:
        ConfigError: It has none.
    """
    for name, module in model.named_modules():
        if isinstance(module, Embedding) and name.rpartition(".")[2] == "token":
            return name, module
    raise ConfigError(f"adapter.method=prompt: {type(model).__name__} has no table of tokens; use lora")


def require_inputs(model: nn.Module, task: str, config: AdapterConfig) -> None:
    """Refuse a model before whose texts nothing can be put.

    Raises:
        ConfigError: Names the input or the task, and what to do.
    """
    takes = _inputs(type(model))
    what = f"adapter.method={config.method}: {type(model).__name__}"
    unknown = [name for name in takes if name not in (*_OTHERS, *_FILLS)]
    if unknown:
        raise ConfigError(f"{what} takes {', '.join(unknown)}, in which virtual tokens have no place; use lora")
    if task in ("masked_lm", "multiple_choice"):
        raise ConfigError(f"{what} for {task} has no form in PEFT's file; use lora")
    if "decoder_input_ids" in takes and task in ("classification", "question_answering"):
        raise ConfigError(f"{what} for {task} reads the text in its decoder as well, where PEFT puts no virtual tokens; use lora")
    room = cast(Any, model).max_length
    if config.num_virtual_tokens >= room:
        raise ConfigError(f"adapter.num_virtual_tokens={config.num_virtual_tokens} leaves no room in {room} positions; use fewer")


def open_door(model: nn.Module, part: VirtualTokens) -> None:
    """Let a model's texts begin with vectors, once its token table has them as its adapter."""
    vars(model)["virtual_tokens"] = part
    vars(model)["num_virtual_tokens"] = part.num_tokens
    if _lengthen not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_lengthen, with_kwargs=True)
        model.register_forward_hook(_shorten, with_kwargs=True)
        if hasattr(model, "prefill"):
            vars(model)["prefill"] = MethodType(_prefill, model)


@torch.no_grad()
def fill_virtual_tokens(model: nn.Module) -> None:
    """Start the vectors at rows of the token table, drawn from torch's global generator. Collective on a sharded model."""
    part = virtual_tokens_of(model)
    if part is None:
        return
    table = full_tensor(find_table(model)[1].weight).detach()
    rows = table[torch.randint(len(table), (part.num_tokens,)).to(table.device)].to(part.vectors.dtype)
    write_whole(part.vectors, rows)


def _inputs(model_class: type[nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(model_class.forward).parameters)[1:]


def _given(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_inputs(type(model)), args, strict=False)), **kwargs}


def _lengthen(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a forward longer texts; with caches they have been given before."""
    part = virtual_tokens_of(model)
    if part is None:
        return None
    given = _given(model, args, kwargs)
    if given.get("caches") is not None or given.get("input_ids") is None:
        return None
    if given.get("position_ids") is not None:
        raise DataError("position_ids: the virtual tokens have the first positions, and the model counts on; leave them out")
    ids = given["input_ids"]
    has_one_a_token = model.task != "seq2seq_lm"
    for name in ("token_type_ids", "labels"):
        value = given.get(name)
        if value is not None and value.dim() == 2 and (name != "labels" or has_one_a_token):
            given[name] = torch.cat([value.new_full((len(value), part.num_tokens), _FILLS[name]), value], dim=1)
    for name in ("start_positions", "end_positions"):
        if given.get(name) is not None:
            given[name] = torch.where(given[name] == IGNORED, IGNORED, given[name] + part.num_tokens)
    given["input_ids"], given["attention_mask"] = part.announce(ids, given.get("attention_mask"), after_padding=False)
    return (), given


def _shorten(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Take the scores of virtual tokens off what a forward gives."""
    part = virtual_tokens_of(model)
    if part is None or kwargs.get("caches") is not None or args:
        return
    if model.task in (_OF_THE_ENCODER if "decoder_input_ids" in _inputs(type(model)) else _A_SCORE_A_TOKEN):
        for name in _SCORES:
            scores = getattr(output, name)
            if scores is not None:
                setattr(output, name, scores[:, part.num_tokens :])


def _prefill(model: Any, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int) -> Any:
    """Read a prompt behind the virtual tokens."""
    part = virtual_tokens_of(model)
    if part is not None:
        is_decoder = "decoder_input_ids" not in _inputs(type(model))
        input_ids, attention_mask = part.announce(input_ids, attention_mask, after_padding=is_decoder)
    return type(model).prefill(model, input_ids, attention_mask, max_new_tokens)
