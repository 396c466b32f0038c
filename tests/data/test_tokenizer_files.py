"""Missing and broken tokenizer files are named."""

import json
from pathlib import Path

import pytest
from tiny_tokenizers import bert_folder, byte_level_folder, write_json
from tokenizers import Tokenizer

from modelzoo.data import load_tokenizer, tokenizer_files
from modelzoo.errors import DataError


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected a folder with tokenizer files, found nothing"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"file: expected a folder with tokenizer files, found a file"):
        load_tokenizer(tmp_path / "file")


def test_a_folder_without_tokenizer_files_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(DataError, match=r"expected tokenizer.json, vocab.txt, or vocab.json with merges.txt, found model.safe"):
        load_tokenizer(tmp_path)


def test_missing_merges_are_named(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={})
    (folder / "merges.txt").unlink()
    with pytest.raises(DataError, match=r"\(missing: merges.txt\), found config.json, tokenizer_config.json, vocab.json; copy"):
        load_tokenizer(folder)


def test_missing_vocabulary_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    with pytest.raises(DataError, match=r"expected tokenizer.json or vocab.txt, found config.json; copy the tokenizer files"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_without_the_unknown_token_is_refused(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, config={})
    (folder / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\ncat\n")
    with pytest.raises(DataError, match=r"vocab.txt: expected the unknown token '\[UNK\]' in the vocabulary, found 4 tokens"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", b"{", r"tokenizer_config.json: expected JSON, found: Expecting property name"),
        ("tokenizer_config.json", b"[1]", r"tokenizer_config.json: expected a JSON object, found list"),
        ("tokenizer_config.json", b'{"a": "\xff"}', r"tokenizer_config.json: expected UTF-8, found byte 0xff at 7"),
        ("tokenizer_config.json", b'{"mask_token": {"id": 3}}', r"mask_token: expected a token's text or an object"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"7": 3}}', r"added_tokens_decoder.7: expected a token's text"),
        ("tokenizer_config.json", b'{"cls_token": ""}', r"expected bert tokenizer files|cls_token: expected a token"),
        ("tokenizer.json", b"[" * 100_000, r"tokenizer.json: expected JSON, found: "),
        ("tokenizer.json", b'{"added_tokens": [3]}', r"expected bert tokenizer files, found: "),
    ],
)
def test_broken_json_files_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, config={})
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(folder)


def test_a_truncated_generic_tokenizer_json_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", {"model": {"type": "WordPiece", "vocab": 3}})
    with pytest.raises(DataError, match="expected generic tokenizer files, found: "):
        load_tokenizer(tmp_path)


def test_malformed_merges_are_refused(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={})
    (folder / "merges.txt").write_text("#version: 0.2\nnot_in vocabulary_at_all\n")
    with pytest.raises(DataError, match="expected roberta tokenizer files, found: "):
        load_tokenizer(folder)


def test_an_unreadable_class_lists_what_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "nobodys"})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "NobodysTokenizer"})
    (tmp_path / "vocab.unknown").write_text("x")
    with pytest.raises(DataError, match=r"expected BertTokenizer, GPT2Tokenizer, RobertaTokenizer, a tokenizer.json, or what"):
        load_tokenizer(tmp_path)


def test_code_in_a_folder_is_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = tmp_path / "model"
    bert_folder(folder, config={"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": [None, "evil.Evil"]}})
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w').write('ran')\nclass Evil: pass\n")
    with pytest.raises(DataError):
        load_tokenizer(folder)
    assert not canary.exists()


def test_padding_and_truncation_stored_in_tokenizer_json_are_switched_off(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "first", config={})
    saved = load_tokenizer(folder)
    backend = Tokenizer.from_str(saved._backend.to_str())
    backend.enable_padding(length=32)
    backend.enable_truncation(6)
    target = tmp_path / "second"
    target.mkdir()
    backend.save(str(target / "tokenizer.json"))
    assert json.loads((target / "tokenizer.json").read_text())["padding"] is not None
    again = load_tokenizer(target)
    text = "the cat sat on the mat and ran"
    assert again.encode([text])[0].input_ids == saved.encode([text])[0].input_ids
    assert (again.cls_id, again.sep_id, again.pad_id, again.mask_id) == (2, 3, 0, 4)  # looked up by their usual names


@pytest.mark.parametrize("lacking", ["sentencepiece", "protobuf"])
def test_a_reader_of_sentencepiece_files_that_is_not_installed_is_named(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "spiece.model").write_bytes(b"")
    monkeypatch.setattr(tokenizer_files, "_is_installed", lambda module: lacking not in module)
    with pytest.raises(DataError, match=rf"pip install {lacking}$"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("more", [{}, {"tokenizer_config.json": '{"tokenizer_class": "LlamaTokenizer"}'}])
def test_a_llama_without_its_tokenizer_is_one_message_of_one_line(tmp_path: Path, more: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for name, text in more.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        load_tokenizer(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}: expected ")
    assert "tokenizer.json" in message
    assert "found" in message
    assert "into the" in message
    assert len(message.splitlines()) == 1
