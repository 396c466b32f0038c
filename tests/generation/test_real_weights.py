"""Pretrained models that fill a folder each: equal to transformers, and what they write through the command is what it writes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from modelzoo.cli import main
from modelzoo.verification import verify

PLACE = os.environ.get("MODELZOO_REAL_WEIGHTS")
CONFIGS = sorted(Path(PLACE).glob("*/config.json")) if PLACE else []
KINDS = {path.parent.name: (json.loads(path.read_text()).get("architectures") or [""])[0] for path in CONFIGS}
TEXTS = [name for name, kind in KINDS.items() if kind.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))]
NONE = pytest.param("", marks=pytest.mark.skip("no pretrained models here; MODELZOO_REAL_WEIGHTS names a folder of them"))
PROMPTS = {
    "ForConditionalGeneration": (
        "edit src/auth/login.py; run pytest tests/test_login.py; fix password hashing bug",
        "Summarize: A",
    ),
    "": ("The capital of France is", "<|im_start|>user\nWhat is the capital of Japan?<|im_end|>\n<|im_start|>assistant\n"),
}


def written(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["generate", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", [*KINDS] or [NONE])
def test_a_pretrained_model_equals_transformers(name: str, real_weights: Path) -> None:
    found = verify(real_weights / name, tolerance=1e-5)
    assert found.is_equal, found


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}], ids=str
)
@pytest.mark.parametrize("name", TEXTS or [NONE])
def test_the_command_writes_what_transformers_writes(
    name: str, options: dict[str, Any], real_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, is_seq2seq = real_weights / name, KINDS[name].endswith("ForConditionalGeneration")
    prompts = PROMPTS["ForConditionalGeneration" if is_seq2seq else ""]
    theirs = getattr(transformers, KINDS[name]).from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    words = [str(folder), "--json", "max_new_tokens=24", *(f"{key}={json.dumps(value)}" for key, value in options.items())]
    lines = written([*words, *(word for prompt in prompts for word in ("--text", prompt))], capsys)
    for prompt, line in zip(prompts, lines, strict=True):
        ids = torch.tensor([tokenizer(prompt).input_ids])
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, **options)[0].tolist()
        expected = expected[1:] if is_seq2seq else expected[ids.shape[1] :]
        assert line["ids"] == expected
        assert line["text"] == tokenizer.decode(expected, skip_special_tokens=True)
