"""CPM-1's checkpoint on the Hugging Face hub has GPT-2's layout: it is a GPT-2 with a tokenizer of its own."""

import shutil
from pathlib import Path

import pytest
import torch
import transformers

import modelzoo
from modelzoo.models.gpt2 import GPT2
from modelzoo.verification import verify

# The fields of the published config.json that say what the model is; sizes are tiny here.
PUBLISHED = {
    "activation_function": "gelu", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "gradient_checkpointing": False,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_inner": None, "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "tokenizer_class": "CpmTokenizer",
    "use_cache": True,
}  # fmt: skip


@pytest.fixture
def folder(testdata: Path, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.GPT2Config(**PUBLISHED, vocab_size=30000, n_embd=8, n_layer=2, n_head=2, n_positions=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "cpm")
    shutil.copy(testdata / "tokenizers" / "cpm1" / "chinese_vocab.model", tmp_path / "cpm" / "spiece.model")
    return tmp_path / "cpm"


def test_it_loads_as_gpt2_and_equals_transformers(folder: Path) -> None:
    assert isinstance(modelzoo.from_pretrained(folder), GPT2)
    assert verify(folder).is_equal


def test_its_tokenizer_comes_with_it_and_is_saved_with_it(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("jieba", reason="jieba is not installed: pip install 'modelzoo-hub[cpm]'")
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: pip install 'modelzoo-hub[cpm]'")
    model = modelzoo.from_pretrained(folder)
    model.save_pretrained(tmp_path / "saved")
    text = "今天天气不错\n我们去公园"
    for place in (folder, tmp_path / "saved"):
        tokenizer = modelzoo.load_tokenizer(place)
        ids = tokenizer.encode([text])[0].input_ids
        assert tokenizer.decode(ids) == text
        assert tokenizer.eos_id == 7  # <eod>, which ends a text
        assert tokenizer.vocab_size == model.config.vocab_size
    logits = model(torch.tensor([ids])).logits
    assert logits.shape == (1, len(ids), 30000)
