"""`modelzoo generate`: live text, JSON lines, ids, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from modelzoo import from_pretrained
from modelzoo import generate as write
from modelzoo.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writer")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=40, bos_token_id=0, eos_token_id=0, initializer_range=0.5
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    texts = ["</s>", *(chr(code) for code in range(ord("a"), ord("z") + 1)), "Ġ", ".", "!"]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder


def test_one_prompt_is_written_as_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model), "--text", "abc", "max_new_tokens=9"]) == 0
    assert capsys.readouterr().out == write(from_pretrained(model), "abc", max_new_tokens=9).texts[0] + "\n"


def test_several_prompts_are_json_lines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--text", "abc", "--text", "d", "max_new_tokens=9", "num_beams=3", "num_return_sequences=2", "length_penalty=2"]
    assert main(["generate", str(model), *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    options = {"max_new_tokens": 9, "num_beams": 3, "num_return_sequences": 2, "length_penalty": 2}
    expected = write(from_pretrained(model), ["abc", "d"], **options)
    assert [line["prompt"] for line in lines] == ["abc", "abc", "d", "d"]
    assert [line["text"] for line in lines] == expected.texts
    assert [line["ids"] for line in lines] == expected.new_ids
    assert [line["score"] for line in lines] == expected.sequence_scores.tolist()


def test_ids_need_no_tokenizer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model), "--ids", "3 4, 5", "max_new_tokens=4", "do_sample=true", "seed=7", "top_k=null"]) == 0
    line = json.loads(capsys.readouterr().out)
    expected = write(from_pretrained(model), [[3, 4, 5]], max_new_tokens=4, do_sample=True, seed=7, top_k=None)
    assert line == {"prompt_ids": [3, 4, 5], "ids": expected.new_ids[0]}


def test_a_stop_text_ends_the_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write(from_pretrained(model), "abc", max_new_tokens=9, eos_token_id=()).texts[0]
    assert main(["generate", str(model), "--text", "abc", "--json", "--stop", whole[4], "max_new_tokens=9", "eos_token_id=[]"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == whole[: whole.index(whole[4])]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected either --text TEXT or --ids 'ID ID'; found neither"),
        (["--text", "a", "--ids", "3"], "found both"),
        (["--ids", "3 x"], "--ids '3 x': expected integers"),
        (["--text", "a", "max_tokens=3"], "max_tokens: is no option of generation; did you mean max_new_tokens?"),
        (["--text", "a", "temperature"], "temperature: expected key=value"),
        (["--text", "a", "top_p=2", "do_sample=true"], "top_p=2 must be above 0 and at most 1"),
        (["--text", "a", "return_scores=true"], "return_scores: is for programs"),
        (["--ids", "30"], "id 30 is not in 0 to 29"),
        (["--text", "a", "max_new_tokens=99"], "exceed the limit 40"),
    ],
)
def test_wrong_words_are_refused(model: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model), *words]) == 2
    assert message in capsys.readouterr().err


def test_stories_repeat_their_expected_ids(testdata: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = testdata / "checkpoints" / "stories260k" / "hf"
    expected = json.loads((folder / "expected.json").read_text())
    count = len(expected["greedy_ids"]) - 1
    assert main(["generate", str(folder), "--ids", "1", f"max_new_tokens={count}"]) == 0
    assert [1, *json.loads(capsys.readouterr().out)["ids"]] == expected["greedy_ids"]
