"""T5's head reads the decoder's output times 1/sqrt(D) where the config says so, whether or not the head is the token table."""

from pathlib import Path

import pytest
import torch
import transformers

import modelzoo

SIZES = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
BATCH = {"input_ids": torch.tensor([[5, 6, 7, 1]]), "decoder_input_ids": torch.tensor([[0, 8, 9]])}


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
@pytest.mark.parametrize(("stated", "factor"), [(True, 0.25), (False, 1.0)])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_factor_is_of_the_config_and_the_tie_of_the_tensors(
    kind: str, stated: bool, factor: float, is_tied: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(**SIZES, feed_forward_proj=kind, tie_word_embeddings=stated)
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    table = theirs.shared.weight.detach().clone()
    theirs.lm_head.weight = torch.nn.Parameter(table if is_tied else torch.randn_like(table))
    theirs.save_pretrained(tmp_path)
    ours = modelzoo.from_pretrained(tmp_path)
    assert ours.config.tie_word_embeddings == is_tied
    hidden = modelzoo.from_pretrained(tmp_path, task="base")(**BATCH).last_hidden_state
    expected = factor * hidden @ theirs.lm_head.weight.T
    assert torch.allclose(ours(**BATCH).logits, expected, atol=1e-5)
    assert torch.allclose(ours(**BATCH).logits, theirs(**BATCH).logits, atol=1e-5)
