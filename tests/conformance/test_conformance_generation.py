"""Every family that writes: greedy decoding and beam search against transformers, or against its own steps one by one."""

from pathlib import Path

import pytest
import torch
from harness import Case, cases, has_reference, reference, row, saved

from modelzoo import from_pretrained, generate
from modelzoo.models.model import Model

WRITING = [case for case in cases() if case.task in ("causal_lm", "seq2seq_lm")]
COMPARED = [(case, 1) for case in WRITING if has_reference(case.family)]
COMPARED += [(case, 3) for case, _ in COMPARED if case.name == "plain"]
STEPS = 6


def prompts(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, model.config.vocab_size, (2, 5), generator=torch.Generator().manual_seed(3))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    return ids.masked_fill(mask == 0, model.config.pad_token_id or 0), mask


@pytest.mark.parametrize(("case", "num_beams"), COMPARED, ids=str)
def test_a_family_writes_what_transformers_writes(case: Case, num_beams: int, tmp_path: Path) -> None:
    model = from_pretrained(saved(case, tmp_path))
    ids, mask = prompts(model)
    theirs = reference(case)
    theirs.generation_config.eos_token_id = None
    if hasattr(theirs.config, "output_router_logits"):
        theirs.config.output_router_logits = False  # transformers' router loss does not take the mask of a single step
    pad = model.config.pad_token_id or 0
    options = {"max_new_tokens": STEPS, "pad_token_id": pad, "num_beams": num_beams}
    # transformers' cache breaks for a T5 whose stacks differ in depth, and its CPM-Ant is right with the cache alone
    expected = theirs.generate(ids, attention_mask=mask, use_cache=case.task == "causal_lm", **options)
    found = generate(model, ids, mask, eos_token_id=(), **options)
    assert torch.equal(found.sequences, expected)


ALONE = [case for case in WRITING if not has_reference(case.family) and "own_decoding" not in row(case.family)]


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_a_family_without_reference_writes_its_best_tokens(case: Case, tmp_path: Path) -> None:
    model = from_pretrained(saved(case, tmp_path))
    ids, mask = prompts(model)
    found = generate(model, ids, mask, max_new_tokens=STEPS, eos_token_id=())
    with torch.no_grad():
        logits, state = model.prefill(ids, mask, STEPS)
        for step in range(STEPS):
            best = logits.argmax(-1)
            assert best.tolist() == [new_ids[step] for new_ids in found.new_ids]
            logits = model.decode(best, state)
