"""Whether a tokenizer fits an embedding."""

from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError

__all__ = ["check_vocab"]


def check_vocab(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Check that each id of the tokenizer has a row in the model's embedding.

    Args:
        tokenizer: The tokenizer.
        vocab_size: Rows of the embedding.

    Raises:
        DataError: If an id has none, naming the first such token.
    """
    outside = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items() if token_id >= vocab_size)
    if outside:
        token_id, token = outside[0]
        raise DataError(
            f"len(tokenizer)={tokenizer.vocab_size} > {vocab_size} rows: token {token!r} has id {token_id}, which is outside the "
            f"model's embedding; use the checkpoint's own tokenizer files"
        )
