"""Mixtral (Jiang et al., 2024) and Qwen2-MoE: LLaMA with a mixture of experts in the place of the feed-forward network."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from modelzoo.errors import ConfigError
from modelzoo.layers import (
    Experts,
    KeyValueCache,
    MixtureOfExperts,
    Router,
    SharedExpert,
    load_balancing_loss,
    recorded_routing,
)
from modelzoo.models.llama import Llama, LlamaConfig
from modelzoo.models.model import ModelOutput

__all__ = ["Mixtral", "MixtralConfig", "Qwen2Moe", "Qwen2MoeConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtralConfig(LlamaConfig):
    """Sizes and options of a Mixtral; the defaults are transformers' own."""

    num_key_value_heads: int = 8
    """Key and value heads of a block."""
    intermediate_size: int = 14336
    """Width of an expert."""
    norm_eps: float = 1e-5
    """Added to the mean square in every norm."""
    max_positions: int = 131072
    """The longest sequence, in tokens."""
    rope_theta: float = 1000000.0
    """Base of the rotary wavelengths."""
    num_experts: int = 8
    """Experts of a layer."""
    experts_per_token: int = 2
    """Experts that a token goes to."""
    has_router_loss: bool = False
    """Whether a language model's loss has the term that keeps experts evenly used."""
    router_loss_weight: float = 0.001
    """Factor on that term."""

    def __post_init__(self) -> None:
        """Check the values."""
        LlamaConfig.__post_init__(self)
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(f"experts_per_token={self.experts_per_token} must lie in 1 to num_experts={self.num_experts}")
        if self.feed_forward_bias:
            raise ConfigError("feed_forward_bias=True is not built with experts, which have no biases; use False")
        if not self.router_loss_weight >= 0:
            raise ConfigError(f"router_loss_weight={self.router_loss_weight} must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen2MoeConfig(MixtralConfig):
    """Sizes and options of a Qwen2-MoE; the defaults are transformers' own."""

    vocab_size: int = 151936
    """Rows of the token embedding."""
    hidden_size: int = 2048
    """D."""
    num_layers: int = 24
    """Transformer blocks, at least 1."""
    num_heads: int = 16
    """Query heads of a block."""
    num_key_value_heads: int = 16
    """Key and value heads of a block."""
    intermediate_size: int = 5632
    """Width of the feed-forward network of a layer without experts."""
    norm_eps: float = 1e-6
    """Added to the mean square in every norm."""
    max_positions: int = 32768
    """The longest sequence, in tokens."""
    rope_theta: float = 10000.0
    """Base of the rotary wavelengths."""
    attention_bias: bool = True
    """Whether query, key and value have a bias."""
    num_experts: int = 60
    """Experts of a layer."""
    experts_per_token: int = 4
    """Experts that a token goes to."""
    expert_size: int = 1408
    """Width of an expert."""
    shared_expert_size: int = 5632
    """Width of the expert that every token goes through."""
    is_normalized: bool = False
    """Whether the weights of a token's experts are scaled to add up to 1."""
    sparse_step: int = 1
    """Every layer whose number, from 1, is a multiple of this has experts."""
    dense_layers: tuple[int, ...] = ()
    """Layers, from 0, that have no experts whatever `sparse_step` says."""

    def __post_init__(self) -> None:
        """Check the values."""
        MixtralConfig.__post_init__(self)
        for name in ("expert_size", "shared_expert_size", "sparse_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


class Mixtral(Llama):
    """Mixtral for one of five tasks, equal to transformers' `Mixtral...` classes.

    As there, a language model's loss has the term of the router, in training and in evaluation, when the config asks for it.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "mixtral"
    config_class = MixtralConfig
    config: MixtralConfig

    def build_feed_forward(self, config: LlamaConfig, layer: int) -> nn.Module:
        """Return a layer's experts and their router."""
        assert isinstance(config, MixtralConfig)
        return MixtureOfExperts(
            Router(config.hidden_size, config.num_experts, config.experts_per_token),
            Experts(config.num_experts, config.hidden_size, config.intermediate_size, activation=config.activation),
        )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> ModelOutput:
        """Run the model.

        Args:
            input_ids: As in `DecoderModel.forward`, and so are the others.
            attention_mask: (B, T), non-zero where there is a token; None when all are.
            position_ids: (B, T) int64; None to count the tokens of the mask.
            labels: Of the task.
            caches: One a block.
            start_positions: (B,) int64.
            end_positions: (B,) int64.

        Returns:
            As `DecoderModel.forward`; with `has_router_loss` the router's term is part of a language model's loss.
        """
        if labels is None or self.task != "causal_lm" or not self.config.has_router_loss:
            return super().forward(input_ids, attention_mask, position_ids, labels, caches, start_positions, end_positions)
        with recorded_routing(self.decoder) as routings:
            output = super().forward(input_ids, attention_mask, position_ids, labels, caches)
        assert output.loss is not None
        if routings:
            output.loss = output.loss + self.config.router_loss_weight * load_balancing_loss(routings)
        return output


class Qwen2Moe(Mixtral):
    """Qwen2-MoE for one of five tasks, equal to transformers' `Qwen2Moe...` classes: some layers have experts, and a shared one.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "qwen2_moe"
    config_class = Qwen2MoeConfig
    config: Qwen2MoeConfig

    def build_feed_forward(self, config: LlamaConfig, layer: int) -> nn.Module:
        """Return a layer's experts, or its feed-forward network."""
        assert isinstance(config, Qwen2MoeConfig)
        if layer in config.dense_layers or (layer + 1) % config.sparse_step:
            return Llama.build_feed_forward(self, config, layer)
        width, activation = config.hidden_size, config.activation
        return MixtureOfExperts(
            Router(width, config.num_experts, config.experts_per_token, is_normalized=config.is_normalized),
            Experts(config.num_experts, width, config.expert_size, activation=activation),
            SharedExpert(width, config.shared_expert_size, activation=activation),
        )
