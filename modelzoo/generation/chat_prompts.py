"""Questions of a user as prompts in a model's own chat template."""

from collections.abc import Sequence

from modelzoo.data import Tokenizer
from modelzoo.data.chat import ChatEncoder, chat_template

__all__ = ["chat_prompts"]


def chat_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return the ids after which the answer to each text is written, and the ids that end an answer.

    Args:
        tokenizer: Of the model, with its chat template.
        texts: What a user says, one chat each.

    Raises:
        DataError: The tokenizer has no chat template, or it refuses a text.
    """
    encoder = ChatEncoder(tokenizer, chat_template(tokenizer, None))
    return [encoder.prompt([{"role": "user", "content": text}]) for text in texts], encoder.end_ids
