"""CPM-Ant (OpenBMB, 2022): soft prompts, distances within segments and a bias for each pair of segments."""

from dataclasses import dataclass

from torch import Tensor

from modelzoo.errors import ConfigError
from modelzoo.layers import Embedding, Layout
from modelzoo.models.decoder_model import DecoderConfig, DecoderEmbeddings
from modelzoo.models.prompted_decoder import PromptedConfig, PromptedDecoder

__all__ = ["CpmAnt", "CpmAntConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CpmAntConfig(PromptedConfig):
    """Sizes and options of a CPM-Ant; the defaults are cpm-ant-10b's."""

    vocab_size: int = 30720
    """Tokens; the table has prompt_types * prompt_length more rows."""
    hidden_size: int = 4096
    """D."""
    num_layers: int = 48
    """Transformer blocks, at least 1."""
    num_heads: int = 32
    """Attention heads of a block."""
    head_size: int = 128
    """H."""
    intermediate_size: int = 10240
    """Width of the feed-forward network."""
    pad_token_id: int | None = 0
    """Id of the padding token."""
    initializer_range: float = 1.0
    """Standard deviation of fresh weights."""
    tie_word_embeddings: bool = False
    """False: the head has the vocabulary's rows, the table those of the prompts too, and a file holds both."""

    def __post_init__(self) -> None:
        """Check the values."""
        PromptedConfig.__post_init__(self)
        if self.tie_word_embeddings:
            raise ConfigError(
                "tie_word_embeddings=True is not built for CPM-Ant: its table has more rows than its head; leave it out"
            )


class _Embeddings(DecoderEmbeddings):
    """Rows of tokens and of soft prompts in one table, plus a row for the segment."""

    def __init__(self, config: CpmAntConfig) -> None:
        rows = config.vocab_size + config.prompt_types * config.prompt_length
        super().__init__(rows, config.hidden_size, dropout=config.embedding_dropout)
        self.segment = Embedding(config.segment_types, config.hidden_size, tensor_split=None)


class CpmAnt(PromptedDecoder):
    """CPM-Ant, as a backbone or as a language model.

    Equal to transformers' `CpmAntModel` and `CpmAntForCausalLM`, where every token is context and padding is on the left. With
    labels it is trained as CPM-Ant was, on the tokens that are no context; transformers lets every token see its own label.

    Args:
        config: Sizes and options.
        task: "base" or "causal_lm".
    """

    family = "cpmant"
    config_class = CpmAntConfig
    config: CpmAntConfig
    text_segment = 2
    text_prompt = 2
    embeddings: _Embeddings

    def build_embeddings(self, config: DecoderConfig) -> DecoderEmbeddings:
        """Return the tables of tokens and segments."""
        assert isinstance(config, CpmAntConfig)
        return _Embeddings(config)

    def _inner_dropout(self, config: PromptedConfig) -> float:
        return config.hidden_dropout

    def _embed(self, ids: Tensor, segments: Tensor | None, layout: Layout) -> Tensor:
        embedded: Tensor = self.embeddings.dropout(self.embeddings.token(ids) + self.embeddings.segment(segments))
        return embedded
