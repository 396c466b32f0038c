"""Bytes that the ends of a model keep for the backward: embeddings before the blocks, the last norm, the head and the loss."""

from modelzoo.plan.activations import UnitActivations, norm_activations
from modelzoo.plan.parts import AttentionPart, ModelParts, NormPart
from modelzoo.plan.workload import MASKED_SHARE, Workload
from modelzoo.runtime.tiers.inputs import INPUT_BUFFERS

__all__ = ["head_activations"]

LM_CHUNK_TOKENS = 512
"""Tokens whose scores over the vocabulary exist at a time while a causal language model is trained."""


def head_activations(model: ModelParts, work: Workload, *, tensor: int = 1) -> tuple[UnitActivations, UnitActivations]:
    """Return what embeddings and what the last norm, the head and the loss keep.

    The second one's `again` is what its forward and the first moment of the backward hold for a moment.

    Args:
        model: Its units.
        work: Of a rank.
        tensor: Ranks that share the vocabulary.
    """
    scored, work = work, work.behind(model.prompt_tokens)
    value, tokens, hidden = work.value_bytes, work.batch_tokens, model.hidden_size
    targets = scored.target_tokens if model.has_decoder else scored.batch_tokens
    inputs = tokens + (targets if model.has_decoder else 0)
    embedding = {
        "embeddings": 8 * inputs * (2 if model.family in ("gpt2", "opt") else 1)
        + (value * inputs * hidden + 8 * inputs if model.embeds_norm else 0)
        + (inputs * hidden if model.embedding_dropout else 0)
    }
    last_norms = [part for part in model.units[-1].parts if isinstance(part, NormPart) and not model.embeds_norm]
    norms = {"last norm": sum(norm_activations(part, tokens, work) for part in last_norms)}
    embedding["positions"] = _positions(model, work, tensor)
    if work.offloads_inputs:
        # the buffers that they pass through, and the one that its block works on
        embedding["inputs of blocks"] = (INPUT_BUFFERS + 1) * value * max(tokens, targets) * hidden
    if model.has_decoder:
        embedding["context"] = value * tokens * hidden + tokens * hidden * (1 if model.embedding_dropout else 0)
    scores, moment = _scores(model, scored, targets, tensor)
    first = UnitActivations(sum(embedding.values()), 0, value * tokens * hidden, embedding)
    kept = norms | scores
    return first, UnitActivations(sum(kept.values()), moment, value * targets * hidden, kept)


def _positions(model: ModelParts, work: Workload, tensor: int) -> int:
    """Return what all blocks of a stack share: rotary phases, or a learned bias."""
    total = 0
    for is_decoder in (False, True):
        own = [unit for unit in model.blocks if unit.is_decoder == is_decoder]
        part = next((part for part in (own[0].parts if own else ()) if isinstance(part, AttentionPart)), None)
        if part is None:
            continue
        lengths = (work.target_lengths or work.lengths) if is_decoder else work.lengths
        if part.has_bias:
            pairs = sum(length * length for length in lengths)
            again = work.value_bytes * part.num_heads // tensor + (1 if part.is_causal else 0)
            total += pairs * (8 + (0 if work.recompute == "none" else again))
        if part.has_rotary:
            total += 8 * sum(lengths) * part.head_size
    return total


def _scores(model: ModelParts, work: Workload, targets: int, tensor: int) -> tuple[dict[str, int], int]:
    """Return what the loss keeps, and what it holds for a moment beside."""
    value, hidden, words = work.value_bytes, model.table_size, -(-model.vocab_size // tensor)
    if not model.is_language_model:
        rows = work.sequences if model.task in ("classification", "multiple_choice") else targets
        return {"logits": rows * (value * hidden + 4 * model.num_labels)}, 3 * 4 * rows * model.num_labels
    if work.whole_scores:
        # log-softmax, float32; then the gradients of its output and of its input beside it
        return {"logits": 4 * targets * words + value * targets * hidden}, 2 * 4 * targets * words
    if model.scores_chunks:
        # gradients of the hidden states and of the table are made in the forward; the backward makes a second copy of both
        kept = value * (targets * hidden + (words * hidden if model.trains_scores[0] else 0))
        chunk = min(targets, LM_CHUNK_TOKENS) * words
        return {"logits": kept}, max(kept, (4 + 4 + value) * chunk + value * targets * hidden)
    scored = round(MASKED_SHARE * targets)
    kept = scored * (4 * words + 4 * value * hidden)
    return {"logits": kept}, 2 * 4 * scored * words
