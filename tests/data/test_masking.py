"""Masks are a pure function of (seed, epoch, row) with the shares that they promise."""

import numpy as np
import torch

from modelzoo.data.masking import IGNORED, MaskRule, draw, mask_tokens

RULE = MaskRule(mask_id=4, vocab_size=1000, seed=42)
IDS = [2, *range(10, 138), 3]
MASKABLE = [False, *[True] * 128, False]


def test_the_same_arguments_give_the_same_masks_and_others_differ() -> None:
    first = mask_tokens(IDS, MASKABLE, RULE, epoch=1, row=5)
    assert mask_tokens(IDS, MASKABLE, RULE, epoch=1, row=5) == first
    other = MaskRule(mask_id=4, vocab_size=1000, seed=43)
    variants = [mask_tokens(IDS, MASKABLE, RULE, epoch=epoch, row=row) for epoch, row in [(0, 5), (1, 6), (5, 1)]]
    assert all(variant != first for variant in [*variants, mask_tokens(IDS, MASKABLE, other, epoch=1, row=5)])


def test_shares_are_15_80_10_10() -> None:
    chosen = masked = kept = 0
    for row in range(1000):
        ids, labels = mask_tokens(IDS, MASKABLE, RULE, epoch=0, row=row)
        for before, after, label in zip(IDS, ids, labels, strict=True):
            if label == IGNORED:
                assert after == before
                continue
            assert label == before
            chosen += 1
            masked += after == 4
            kept += after == before
    assert abs(chosen / 128_000 - 0.15) < 0.005
    assert abs(masked / chosen - 0.8) < 0.01
    assert abs(kept / chosen - 0.1) < 0.01


def test_special_tokens_are_never_chosen_and_every_row_has_a_target() -> None:
    for row in range(300):
        _, labels = mask_tokens([2, 7, 3], [False, True, False], RULE, epoch=0, row=row)
        assert labels == [IGNORED, 7, IGNORED]


def test_drawing_is_philox_and_touches_no_global_generator() -> None:
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()
    raw = draw(1, 2, 3, count=4)
    key = np.array([1, (2 << 40) ^ 3], dtype=np.uint64)
    assert raw.tolist() == np.random.Philox(key=key).random_raw(4).tolist()
    assert np.array_equal(numpy_state[1], np.random.get_state()[1])
    assert torch.equal(torch_state, torch.get_rng_state())
