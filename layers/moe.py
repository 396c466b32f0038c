"""A mixture of experts in the place of a feed-forward network: a router picks a few of many networks for each token.

Shazeer et al. (2017); the routing is that of Mixtral and Qwen2-MoE, the loss that keeps experts evenly used that of Switch
Transformers (Fedus et al., 2021, equations 4 to 6). Letters: E experts, k of them a token.

No token is dropped unless a capacity is asked for. Each expert works on its own rows, so its cost follows the tokens that it gets.
The number of rows of each expert is read back from the device, so a mixture cannot run on meta or fake tensors.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelzoo.layers.activation import activation as activation_function
from modelzoo.layers.feed_forward import FeedForward
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.layers.linear import Linear

__all__ = ["Experts", "MixtureOfExperts", "Router", "Routing", "SharedExpert", "load_balancing_loss", "recorded_routing"]


class Routing(NamedTuple):
    """Which experts some tokens go to.

    Attributes:
        experts: (tokens, k) int64, the best first.
        weights: (tokens, k) float, factors on the experts' outputs.
        probabilities: (tokens, E) float32, of all experts.
    """

    experts: Tensor
    weights: Tensor
    probabilities: Tensor


class Router(nn.Module):
    """Picks the k experts of highest probability, softmax(x Wᵀ) in float32.

    Args:
        hidden_size: D.
        num_experts: E.
        top_k: k, at most E.
        is_normalized: Whether a token's k weights are scaled to add up to 1 (Mixtral); otherwise they stay probabilities.

    Raises:
        ValueError: top_k is not in 1 to E.
    """

    def __init__(self, hidden_size: int, num_experts: int, top_k: int, *, is_normalized: bool = True) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k={top_k} must lie in 1 to num_experts={num_experts}")
        self.num_experts = num_experts
        self.top_k = top_k
        self.is_normalized = is_normalized
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the weight from N(0, std²)."""
        nn.init.normal_(self.weight, std=std)

    def forward(self, hidden: Tensor) -> Routing:
        """Route.

        Args:
            hidden: (tokens, D) float.
        """
        probabilities = F.linear(hidden, self.weight).float().softmax(-1)
        weights, experts = probabilities.topk(self.top_k, dim=-1)
        if self.is_normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routing(experts, weights.to(hidden.dtype), probabilities)

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        return f"{self.top_k} of {self.num_experts}, normalized={self.is_normalized}"


class Experts(nn.Module):
    """E gated feed-forward networks without biases, each applied to its own rows.

    Args:
        num_experts: E.
        hidden_size: D.
        intermediate_size: F, of each.
        activation: A name of `modelzoo.layers.ACTIVATIONS`.
    """

    expert_dim: ClassVar[int] = 0
    """Dimension of every parameter that a runtime may cut over an expert axis. A declaration only: nothing here acts on it."""
    tensor_split: ClassVar[dict[str, int]] = {"gate": 1, "up": 1, "down": 2}
    """Which dimension of each parameter, the intermediate one, a runtime may cut over a tensor axis; outputs are then summed."""

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int, *, activation: str = "silu") -> None:
        super().__init__()
        self.num_experts = num_experts
        self.activation = activation
        self._function = activation_function(activation)
        self.gate = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.up = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        """Fill the weights from N(0, std²)."""
        for weight in (self.gate, self.up, self.down):
            nn.init.normal_(weight, std=std)

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Transform each row by its own expert.

        Args:
            rows: (rows, D) float, in the order of the experts.
            counts: E numbers of rows, one an expert; they add up to `rows`.

        Returns:
            (rows, D) float.
        """
        # unbind and not indexing: the backward of an index fills and adds a zero tensor of all experts' size, once an expert.
        maps = zip(self.gate.unbind(0), self.up.unbind(0), self.down.unbind(0), strict=True)
        pieces = [
            F.linear(self._function(F.linear(part, gate)) * F.linear(part, up), down)
            for part, (gate, up, down) in zip(rows.split(list(counts)), maps, strict=True)
            if len(part)
        ]
        return torch.cat(pieces) if pieces else rows

    def extra_repr(self) -> str:
        """What `print` shows of this layer."""
        _, intermediate_size, hidden_size = self.gate.shape
        return f"{self.num_experts} of {hidden_size} -> {intermediate_size}, activation={self.activation}"


class SharedExpert(nn.Module):
    """A network that every token goes through, times sigmoid(x w) (Qwen2-MoE).

    Args:
        hidden_size: D.
        intermediate_size: F.
        activation: A name of `modelzoo.layers.ACTIVATIONS`.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, *, activation: str = "silu") -> None:
        super().__init__()
        self.feed_forward = FeedForward(hidden_size, intermediate_size, activation=activation, is_gated=True, bias=False)
        self.gate = Linear(hidden_size, 1, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each token by itself.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., D) float.
        """
        output: Tensor = torch.sigmoid(self.gate(hidden)) * self.feed_forward(hidden)
        return output


class MixtureOfExperts(nn.Module):
    """The weighted sum of the outputs of each token's k experts, plus that of a shared expert.

    Between choosing experts and running them the rows stand in the order of the experts, with the number of rows of each: there
    an expert axis would exchange them between ranks. In evaluation no token is dropped, so that what a token becomes does not
    depend on the batch.

    Args:
        router: Chooses.
        experts: As many as the router chooses from.
        shared: From (tokens, D) to (tokens, D), for every token; None for none.
        capacity_factor: In training an expert takes at most this many times its even share of rows (tokens · k / E, rounded up);
            first choices before second ones, then earlier tokens first; the rest of a token's experts adds nothing. None for no
            limit.

    Raises:
        ValueError: Router and experts disagree on E, or the capacity is not above 0.
    """

    def __init__(
        self, router: Router, experts: Experts, shared: nn.Module | None = None, *, capacity_factor: float | None = None
    ) -> None:
        super().__init__()
        if router.num_experts != experts.num_experts:
            raise ValueError(f"the router chooses from {router.num_experts} experts, but there are {experts.num_experts}")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"capacity_factor={capacity_factor} must be above 0, or None for no limit")
        self.router = router
        self.experts = experts
        self.shared = shared
        self.capacity_factor = capacity_factor

    def forward(self, hidden: Tensor) -> Tensor:
        """Mix.

        Args:
            hidden: (..., D) float.

        Returns:
            (..., D) float.
        """
        flat = hidden.flatten(0, -2)
        routing = self.router(flat)
        places, counts = self._dispatch(routing.experts)
        outputs = self.experts(flat.index_select(0, places % len(flat)), counts)
        spread = outputs.new_zeros(routing.experts.numel(), flat.shape[-1]).index_copy(0, places, outputs)
        factors = routing.weights.to(outputs.dtype).t().unsqueeze(-1)
        mixed: Tensor = (spread.unflatten(0, (self.router.top_k, len(flat))) * factors).sum(0)
        if self.shared is not None:
            mixed = mixed + self.shared(flat)
        return mixed.view_as(hidden)

    def _dispatch(self, experts: Tensor) -> tuple[Tensor, list[int]]:
        """Sort the choices of (tokens, k) by expert.

        Returns:
            Places in the flattened (k, tokens), in the order of the experts, and the number of each expert's.
        """
        chosen = experts.t().flatten()
        places = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.experts.num_experts)
        if self.training and self.capacity_factor is not None:
            capacity = math.ceil(self.capacity_factor * len(chosen) / self.experts.num_experts)
            starts = counts.cumsum(0) - counts
            rank = torch.arange(len(chosen), device=chosen.device) - starts[chosen[places]]
            places, counts = places[rank < capacity], counts.clamp(max=capacity)
        return places, counts.tolist()

    def extra_repr(self) -> str:
        """What `print` shows of this layer, beside its parts."""
        return "" if self.capacity_factor is None else f"capacity_factor={self.capacity_factor:g}"


@contextmanager
def recorded_routing(module: nn.Module) -> Iterator[list[Routing]]:
    """Collect what every router of a module decides inside the block, in the order of the decisions.

    Nothing is kept in the module, and a backward pass that runs the routers again, after the block, adds nothing.
    """
    found: list[Routing] = []
    routers = [each for each in module.modules() if isinstance(each, Router)]
    handles = [router.register_forward_hook(lambda _, __, routing: found.append(routing)) for router in routers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def load_balancing_loss(routings: Sequence[Routing]) -> Tensor:
    """Return E times the sum over experts of (share of choices · mean probability); k when all experts are used evenly.

    Shares and means are over the tokens of all layers together, as in transformers' `load_balancing_loss_func`; padding is no
    token.

    Args:
        routings: One a layer, at least one, of the same E.

    Returns:
        () float32.
    """
    num_experts = routings[0].probabilities.shape[-1]
    tokens = sum(len(routing.experts) for routing in routings)
    chosen = torch.cat([routing.experts.flatten() for routing in routings])
    share = torch.bincount(chosen, minlength=num_experts).float() / max(tokens, 1)
    mean = torch.stack([routing.probabilities.sum(0) for routing in routings]).sum(0) / max(tokens, 1)
    loss: Tensor = num_experts * (share * mean).sum()
    return loss
