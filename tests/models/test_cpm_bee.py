"""CPM-Bee against a naive model: segments and their relations, samples, numbered tokens, words that extend the vocabulary."""

import math

import pytest
import torch
from naive_cpm import Weights, bucket, draw, stack
from torch import Tensor

from modelzoo.converters import converter_for
from modelzoo.errors import ConfigError, DataError
from modelzoo.models.cpm_bee import CpmBee, CpmBeeConfig, SegmentMarks

CONFIG = {
    "vocab_size": 40, "hidden_size": 16, "num_attention_heads": 4, "dim_head": 6, "dim_ff": 24, "num_hidden_layers": 2,
    "position_bias_num_buckets": 16, "position_bias_num_segment_buckets": 5, "position_bias_max_distance": 6, "distance_scale": 2.5,
}  # fmt: skip
NAIVE = {"dim_model": 16, "num_heads": 4, "dim_head": 6, "length_scale": True, "attn_scale": True, "ffn_activate_fn": "gated_gelu"}
IDS = torch.randint(1, 40, (2, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])
MARKS = {
    "context": torch.tensor([[1, 1, 1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0, 0, 0]]),
    "numbers": torch.tensor([[0, 0, 1, 0, 2, 0, 3, 0], [0, 1, 0, 0, 0, 0, 0, 0]]),
    "samples": torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 2, 2, 2, 0, 0]]),
    "spans": torch.tensor([[0] * 8, [0, 0, 0, 1, 1, 1, 1, 1]]),
    "segments": SegmentMarks(
        ids=torch.tensor([[0, 0, 1, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1, 0, 0]]),
        counts=torch.full((2, 8), 2),
        offsets=torch.tensor([[0, 0, 0, 4, 4, 4, 4, 4], [0, 0, 0, 4, 4, 4, 0, 0]]),
        relations=torch.tensor([[0, 2, 3, 0, 0, 4, 5, 0], [0, 3, 5, 0, 0, 2, 4, 0]]),
    ),
}
EXTRA = torch.tensor([3, 3, 5]), torch.tensor([1, 4, 0])


def embed(weights: Weights, ids: Tensor, numbers: Tensor) -> Tensor:
    rows = weights["cpmbee.input_embedding.weight"][ids] / math.sqrt(16)
    angles = numbers[:, None] * 2.5 * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    first, second = rows[:, :8], rows[:, 8:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def naive(weights: Weights, row: int, length: int) -> Tensor:
    """(T, V + E) logits of one row without padding."""
    segments = MARKS["segments"]
    sample, span, context = (MARKS[name][row].tolist() for name in ("samples", "spans", "context"))
    ids, counts, offsets, relations = (each[row].tolist() for each in segments)
    buckets, allowed = torch.zeros(length, length, dtype=torch.long), torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        for key in range(length):
            same = sample[query] == sample[key] and span[query] == span[key]
            relation = relations[ids[query] * counts[query] + ids[key] + offsets[query]] if same else 1
            buckets[query, key] = bucket(key - query, 16, 6) if relation == 0 else relation - 1 + 16
            seen = context[key] or (not context[query] and key <= query)
            allowed[query, key] = seen and span[query] == span[key] and (sample[query] in (0, sample[key]))
    bias = weights["cpmbee.position_bias.relative_attention_bias"][buckets].permute(2, 0, 1)
    bare = {name.removeprefix("cpmbee."): tensor for name, tensor in weights.items()}
    hidden = embed(weights, IDS[row, :length], MARKS["numbers"][row, :length])
    hidden = stack(bare, "encoder", hidden, NAIVE | {"norm_eps": 1e-6}, allowed, bias, sum_scale=1 / 1.05)
    scores = hidden / math.sqrt(16) @ weights["cpmbee.input_embedding.weight"].T
    return torch.cat([scores, hidden @ embed(weights, *EXTRA).T], -1)


def pair() -> tuple[CpmBee, dict[str, Tensor]]:
    converter = converter_for("cpmbee")
    model = CpmBee(CpmBeeConfig(**converter.read_config(CONFIG)), "causal_lm").eval()
    mapping = converter.weights("causal_lm")
    shapes = {name: tuple(tensor.shape) for name, tensor in mapping.to_theirs(model.state_dict()).items()}
    weights = draw(shapes, 1.0)
    model.load_state_dict(mapping.to_ours(weights))
    return model, weights


def test_logits_and_gradients_equal_the_naive_model():
    model, weights = pair()
    found = model(IDS, MASK, **MARKS, extra=EXTRA).logits
    total, expected_total = 0, 0
    for row, length in enumerate((8, 6)):
        expected = naive(weights, row, length)
        torch.testing.assert_close(found[row, :length], expected, rtol=1e-5, atol=1e-5)
        total, expected_total = total + found[row, :length].square().mean(), expected_total + expected.square().mean()
    total.backward()
    expected_total.backward()
    gradients = converter_for("cpmbee").weights("causal_lm").to_theirs({n: p.grad for n, p in model.named_parameters()})
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, weights[name].grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@torch.no_grad()
def test_the_loss_scores_no_context_and_takes_extra_words():
    model, weights = pair()
    labels = IDS.clone()
    labels[0, 6] = 41  # the second extra word
    expected = []
    for row, length in enumerate((8, 6)):
        scores = torch.log_softmax(naive(weights, row, length), -1)
        for at in range(1, length):
            if not MARKS["context"][row, at] and MARKS["spans"][row, at] == MARKS["spans"][row, at - 1]:
                expected.append(-scores[at - 1, labels[row, at]])
    loss = model(IDS, MASK, **MARKS, extra=EXTRA, labels=labels.masked_fill(MASK == 0, -100)).loss
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    with pytest.raises(DataError, match="labels: row 0, position 6: 41 is not in 0 to 39"):
        model(IDS, MASK, **MARKS, labels=labels)


def test_a_segment_mark_of_another_shape_is_refused():
    model, _ = pair()
    segments = MARKS["segments"]._replace(counts=torch.ones(2, 3))
    with pytest.raises(DataError, match=r"segments.counts must have the shape of input_ids, \(2, 8\), found \(2, 3\)"):
        model(IDS, segments=segments)
    segments = MARKS["segments"]
    with pytest.raises(DataError, match=r"segments\.relations: 6 is not in 0 to 5"):
        model(IDS, segments=segments._replace(relations=segments.relations + 1))
    with pytest.raises(DataError, match=r"expected 2 rows of at least 8, .* found \(2, 7\)"):
        model(IDS, segments=segments._replace(relations=segments.relations[:, 1:]))
    with pytest.raises(DataError, match=r"segments\.ids: expected numbers from 0, below the counts, found 0 to 1"):
        model(IDS, segments=segments._replace(counts=torch.ones_like(IDS)))
    padding = MASK == 0
    assert model(IDS, MASK, segments=segments._replace(counts=segments.counts.masked_fill(padding, 0))).logits.isfinite().all()


def test_pruned_blocks_are_refused_and_a_list_of_none_is_read():
    converter = converter_for("cpmbee")
    converter.read_config(CONFIG | {"mask_modules": [[False, False], [False, False]]})
    with pytest.raises(ConfigError, match=r"mask_modules: expected null, or false throughout, found \[\[False, True\]"):
        converter.read_config(CONFIG | {"mask_modules": [[False, True], [False, False]]})
    with pytest.raises(ConfigError, match="tie_word_embeddings=False is not built for CPM-Bee"):
        CpmBeeConfig(tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="hidden_size=15 must be even"):
        CpmBeeConfig(hidden_size=15)
