"""Whether a language model's output layer is its token table, where the tensors say so and not the config."""

from pathlib import Path

import torch

from modelzoo.hub.checkpoint import open_checkpoint
from modelzoo.hub.facts import ModelFacts

__all__ = ["are_tied"]


def are_tied(folder: Path, facts: ModelFacts, *, allow_pickle: bool = False) -> bool:
    """Return whether a folder's output layer is missing, or holds the same values as its token table.

    T5's configs are no help: `tie_word_embeddings` means another thing there, and version 5 of transformers writes true for all.

    Args:
        folder: The model folder.
        facts: What the model is; its task is that of a language model.
        allow_pickle: Read an old .bin file if there is nothing better.

    Raises:
        CheckpointError: The files are broken.
    """
    tied = facts.converter.weights(facts.task, tied=True, values=facts.values)
    with open_checkpoint(folder, allow_pickle=allow_pickle) as checkpoint:
        keys = {tied.canonical(key): key for key in checkpoint.tensors}
        for tie in tied.tied:
            if tie.alias in keys and tie.target in keys and tie.alias.startswith("lm_head."):
                return torch.equal(checkpoint.read(keys[tie.alias]), checkpoint.read(keys[tie.target]))
    return True
