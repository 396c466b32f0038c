"""ModernBERT (Warner et al., 2024): a pre-norm encoder with rotary positions, gated feed-forwards and sliding windows.

Every third layer attends to the whole text, the others to a window, and the two kinds have wavelengths of their own. Nothing has
a bias but the scores. The first layer has no norm before its attention: it reads the embeddings, which are normalised already.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor, nn

from modelzoo.converters import Task
from modelzoo.layers import (
    Attention,
    Dropout,
    Embedding,
    Encoder,
    FeedForward,
    FeedForwardBlock,
    LayerNorm,
    Layout,
    Linear,
    RotaryEmbedding,
    SelfAttentionBlock,
    TransformerBlock,
    activation,
)
from modelzoo.layers.initialization import DEFAULT_STD, init_when_built
from modelzoo.models.encoder_model import UnsegmentedModel
from modelzoo.models.encoder_parts import EncoderConfig
from modelzoo.models.model import ModelOutput
from modelzoo.models.modernbert_config import ModernBertConfig

__all__ = ["ModernBert", "ModernBertConfig"]


class ModernBert(UnsegmentedModel):
    """ModernBERT for one of five tasks.

    Equal to transformers' `ModernBertModel`, `ModernBertForMaskedLM`, `ModernBertForSequenceClassification`,
    `ModernBertForTokenClassification` and `ModernBertForQuestionAnswering`, in logits and gradients, at every real token. Its
    `sparse_prediction` changes no loss and is ignored: in training, scores exist for the labelled tokens alone, as for every
    masked language model here; in evaluation they are there for all.

    Args:
        config: Sizes and options.
        task: Which head.
    """

    family = "modernbert"
    config_class = ModernBertConfig
    config: ModernBertConfig
    pooled_tasks = ()

    def build_embeddings(self, config: EncoderConfig) -> nn.Module:
        """Return the token table with its norm."""
        assert isinstance(config, ModernBertConfig)
        return _Embeddings(config)

    def build_encoder(self, config: EncoderConfig) -> Encoder:
        """Return pre-norm blocks, the last norm, and rotary positions of two kinds."""
        assert isinstance(config, ModernBertConfig)
        size = config.hidden_size // config.num_heads
        far = RotaryEmbedding(size, theta=config.global_rope_theta)
        near = RotaryEmbedding(size, theta=config.local_rope_theta)
        layers = range(config.num_layers)
        positions = [far if config.is_global(layer) else near for layer in layers]
        return Encoder((_block(config, layer) for layer in layers), _norm(config), positions)

    def build_head(self, config: EncoderConfig, task: Task) -> nn.Module | None:
        """Return the head of a task; all have the same map and norm before their scores."""
        assert isinstance(config, ModernBertConfig)
        if task == "base":
            return None
        return _LmHead(config) if task == "masked_lm" else _LabelHead(config, self.num_scores(config, task))

    def _layout(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None
    ) -> Layout:
        """Pack long texts without padding too: only then do windows cost less than all pairs (half the time at 2,048 tokens)."""
        if attention_mask is None and input_ids.dim() == 2 and input_ids.shape[1] > 2 * self.config.local_attention:
            attention_mask = torch.ones_like(input_ids)
        return super()._layout(input_ids, attention_mask, token_type_ids, position_ids)

    def _classify(self, hidden: Tensor, layout: Layout, labels: Tensor | None) -> ModelOutput:
        if self.config.classifier_pooling == "cls":
            return super()._classify(hidden, layout, labels)
        hidden = self.encoder(hidden, layout)
        counts = layout.unpack(hidden.new_ones(hidden.shape[:-1])).sum(1, keepdim=True).clamp(min=1)
        assert self.head is not None
        return self._scored(self.head(layout.unpack(hidden).sum(1) / counts), labels, layout)

    def init_weights(self, only: Collection[str] | None = None) -> None:
        """Give layers their first values, narrower where they end a sublayer; see `Model.init_weights`.

        The standard deviations are the reference's; its cut of the normal distribution at two of them is left out.
        """
        super().init_weights(only)
        narrow = self.config.initializer_range / (2 * self.config.num_layers) ** 0.5
        stds = {"sublayer.output.weight": narrow, "down.weight": narrow, "head.dense.weight": narrow}
        stds |= {"head.output.weight": self.config.hidden_size**-0.5, "head.decoder.weight": narrow}
        for name, parameter in self.named_parameters():
            std = next((std for ending, std in stds.items() if name.endswith(ending)), None)
            if std is not None and (only is None or name in only):
                self.fill(parameter, partial(nn.init.normal_, std=std))


class _Embeddings(nn.Module):
    """norm(token), then dropout."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.token = Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.norm = _norm(config)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.norm(self.token(ids)))
        return embedded


class _LabelHead(nn.Module):
    """norm(act(W x)), dropout, scores."""

    def __init__(self, config: ModernBertConfig, num_labels: int) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, config.classifier_bias)
        self._function = activation(config.classifier_activation)
        self.norm = _norm(config)
        self.dropout = Dropout(config.head_dropout)
        self.output = Linear(config.hidden_size, num_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.output(self.dropout(self.norm(self._function(self.dense(hidden)))))
        return scores


class _LmHead(nn.Module):
    """norm(act(W x)), then scores against a table."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, config.classifier_bias)
        self._function = activation(config.classifier_activation)
        self.norm = _norm(config)
        is_tied, size = config.tie_word_embeddings, config.vocab_size
        self.decoder = None if is_tied else Linear(config.hidden_size, size, bias=False, tensor_split="vocabulary")
        self.bias = nn.Parameter(self.dense.weight.new_empty(size)) if config.decoder_bias else None
        init_when_built(self)

    def init_weights(self, std: float = DEFAULT_STD) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor, embedding: Embedding) -> Tensor:
        features = self.norm(self._function(self.dense(hidden)))
        scores: Tensor = embedding.logits(features) if self.decoder is None else self.decoder(features)
        return scores if self.bias is None else scores + self.bias


def _norm(config: ModernBertConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, bias=config.norm_bias)


def _block(config: ModernBertConfig, layer: int) -> TransformerBlock:
    attention = Attention(
        config.hidden_size,
        config.num_heads,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
        window=None if config.is_global(layer) else config.local_attention // 2 + 1,
    )
    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.activation,
        is_gated=True,
        bias=config.feed_forward_bias,
        dropout=config.feed_forward_dropout,
    )
    return TransformerBlock(
        SelfAttentionBlock(attention, nn.Identity() if layer == 0 else _norm(config), dropout=config.attention_dropout),
        FeedForwardBlock(feed_forward, _norm(config)),
    )
