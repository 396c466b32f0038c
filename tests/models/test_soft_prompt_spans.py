"""Several texts in a row behind soft prompts of their own (CPM-Ant, CPM-3): as if each stood alone, in scores and gradients."""

import pytest
import torch
from torch import Tensor

from modelzoo.errors import DataError
from modelzoo.models.cpm3 import CPM3, CPM3Config
from modelzoo.models.cpm_ant import CpmAnt, CpmAntConfig
from modelzoo.models.prompted_decoder import PromptedDecoder

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "head_size": 6, "intermediate_size": 24,
    "num_buckets": 16, "max_distance": 6, "prompt_types": 3, "prompt_length": 4, "segment_types": 4,
}  # fmt: skip
IDS = torch.randint(1, 40, (2, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 9, [0, 1, 1, 1, 1, 1, 1, 0, 0]])
SPANS = torch.tensor([[0, 0, 0, 0, 3, 3, 0, 0, 0], [5, 1, 1, 1, 2, 2, 2, 2, 7]])
TEXTS = [(0, 0, 4), (0, 4, 6), (0, 6, 9), (1, 1, 4), (1, 4, 7)]
CONTEXT = torch.tensor([[1, 1, 0, 0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 1, 1, 0, 0, 0]])
SEGMENTS = torch.tensor([[1, 1, 2, 2, 2, 2, 3, 3, 1], [0, 1, 1, 2, 3, 2, 2, 0, 0]])
KINDS = torch.tensor([[1, 0, 0, 0, 2, 0, 0, 0, 0], [0, 2, 0, 0, 1, 0, 0, 0, 0]])


def model(family: str, task: str = "causal_lm") -> PromptedDecoder:
    torch.manual_seed(0)
    if family == "cpm3":
        return CPM3(CPM3Config(**SIZES), task).eval()
    return CpmAnt(CpmAntConfig(**SIZES), task).eval()


def alone(ours: PromptedDecoder, row: int, start: int, end: int, **more: Tensor) -> tuple[Tensor, Tensor | None]:
    part = slice(start, end)
    marks = {name: value[row : row + 1, part] for name, value in more.items()}
    output = ours(
        IDS[row : row + 1, part],
        context=CONTEXT[row : row + 1, part],
        segment_ids=SEGMENTS[row : row + 1, part],
        prompt_types=KINDS[row, start : start + 1],
        **marks,
    )
    return (output.last_hidden_state if output.logits is None else output.logits)[0], output.loss


@pytest.mark.parametrize("family", ["cpm3", "cpmant"])
@pytest.mark.parametrize("task", ["base", "causal_lm"])
def test_packed_texts_equal_texts_alone_in_outputs_and_gradients(family, task):
    ours = model(family, task)
    output = ours(IDS, MASK, context=CONTEXT, spans=SPANS, segment_ids=SEGMENTS, prompt_types=KINDS)
    found = output.last_hidden_state if task == "base" else output.logits
    assert found.shape[:2] == IDS.shape
    total, expected_total = 0, 0
    for row, start, end in TEXTS:
        expected, _ = alone(ours, row, start, end)
        torch.testing.assert_close(found[row, start:end], expected, rtol=0, atol=1e-5)
        total, expected_total = total + found[row, start:end].square().mean(), expected_total + expected.square().mean()
    names, parameters = zip(*ours.named_parameters(), strict=True)
    packed = torch.autograd.grad(total, parameters, retain_graph=True)
    unpacked = torch.autograd.grad(expected_total, parameters)
    for name, ours_, theirs in zip(names, packed, unpacked, strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("family", ["cpm3", "cpmant"])
def test_the_loss_of_packed_texts_is_that_of_their_tokens_alone(family):
    ours = model(family)
    labels = IDS.masked_fill(MASK == 0, -100)
    losses, weights = [], []
    for row, start, end in TEXTS:
        scored = int((CONTEXT[row, start + 1 : end] == 0).sum())
        loss = alone(ours, row, start, end, labels=labels)[1]
        losses.append(loss * scored)
        weights.append(scored)
    marks = {"context": CONTEXT, "spans": SPANS, "segment_ids": SEGMENTS, "prompt_types": KINDS}
    for mode in (ours.eval(), ours):
        found = mode(IDS, MASK, labels=labels, **marks).loss
        torch.testing.assert_close(found, torch.stack(losses).sum() / sum(weights), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["cpm3", "cpmant"])
def test_without_a_context_each_text_has_its_own_before_its_labels(family):
    ours = model(family)
    labels = torch.where(torch.tensor([0, 0, 1, 1, 0, 1, 0, 1, 1], dtype=torch.bool), IDS, -100)[:1]
    context = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 0, 0]])
    found = ours(IDS[:1], spans=SPANS[:1], labels=labels).loss
    assert torch.equal(found, ours(IDS[:1], spans=SPANS[:1], labels=labels, context=context).loss)


@torch.no_grad()
def test_one_span_a_row_changes_nothing_and_shapes_are_checked():
    ours = model("cpmant")
    assert torch.equal(ours(IDS).logits, ours(IDS, spans=torch.ones_like(IDS)).logits)
    with pytest.raises(DataError, match=r"spans must have the shape of input_ids, \(2, 9\), found \(2, 3\)"):
        ours(IDS, spans=SPANS[:, :3])
