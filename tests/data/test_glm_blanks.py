"""GLM's tokens and blanks: a real Chinese sentencepiece model with the commands behind its pieces."""
# ruff: noqa: RUF001  # full-width signs are what Chinese texts have

import json
import shutil
from pathlib import Path

import pytest

from modelzoo.data import Tokenizer, load_tokenizer
from modelzoo.data.glm_blanks import glm_prompts, glm_training_batch
from modelzoo.errors import DataError

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: pip install 'modelzoo-hub[cpm]'")
PIECES = 30_000
START, END, SENTENCE = PIECES + 6, PIECES + 7, PIECES + 8


@pytest.fixture
def folder(testdata, tmp_path) -> Path:
    shutil.copy(testdata / "tokenizers" / "cpm1" / "chinese_vocab.model", tmp_path / "cog-pretrain.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm-10b"}))
    return tmp_path


@pytest.fixture
def tokenizer(folder) -> Tokenizer:
    return load_tokenizer(folder)


def model(folder: Path) -> "sentencepiece.SentencePieceProcessor":
    return sentencepiece.SentencePieceProcessor(str(folder / "cog-pretrain.model"))


def test_commands_stand_behind_the_pieces_as_for_glm_10b_zh(tokenizer, folder):
    parts = model(folder)
    found = tokenizer.encode(["今天天气不错，[sMASK] 我们去公园。", "[gMASK]"])
    expected = [PIECES + 2, *parts.encode("今天天气不错，"), SENTENCE, *parts.encode("我们去公园。"), PIECES]
    assert [each.input_ids for each in found] == [expected, [PIECES + 2, END, PIECES]]
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.mask_id) == (PIECES, END, START, PIECES + 3)
    assert tokenizer.decode(expected) == parts.decode([number for number in expected if number < PIECES])
    assert "[sMASK]" in tokenizer.decode(expected, skip_special_tokens=False)


def test_offsets_are_the_characters_of_each_token(tokenizer):
    text = "天气 [MASK] 不错"
    found = tokenizer.encode([text], offsets=True)[0]
    places = [place for place, number in zip(found.offsets, found.sequence_ids, strict=True) if number is not None]
    assert "".join(text[start:end] for start, end in places) == text


def test_a_file_says_the_ids_of_the_commands(folder):
    later = {name: PIECES + number for name, number in {
        "<|endoftext|>": 0, "[SEP]": 1, "[CLS]": 2, "[MASK]": 3, "[UNK]": 4, "<|startofpiece|>": 6, "<|endofpiece|>": 7,
        "[sMASK]": 8, "[gMASK]": 9,
    }.items()}  # fmt: skip
    (folder / "added_tokens.json").write_text(json.dumps(later))
    assert load_tokenizer(folder).encode(["[gMASK]"])[0].input_ids == [PIECES + 2, PIECES + 9, PIECES]
    (folder / "added_tokens.json").write_text(json.dumps(later | {"[SEP]": 17}))
    with pytest.raises(DataError, match=r"added_tokens.json: expected an id from 30000 for \[SEP\], found 17"):
        load_tokenizer(folder)


def test_a_prompt_is_a_text_and_a_blank_at_its_first_mask(tokenizer):
    batch = glm_prompts(tokenizer, ["[MASK]好[gMASK]", "[sMASK]"])
    (good,) = tokenizer.encode(["好"])[0].input_ids[2:-1] or tokenizer.encode(["好"])[0].input_ids[1:-1]
    assert batch.ids[1].tolist()[-4:] == [PIECES + 2, SENTENCE, PIECES, START]
    width = batch.ids.shape[1]
    assert batch.ids[0, :2].tolist() == [PIECES + 2, PIECES + 3]
    assert batch.ids[0].tolist()[-4:] == [good, END, PIECES, START]
    assert batch.mask.sum(1).tolist() == [width, 4]
    assert batch.position_ids[0].tolist() == [*range(width - 1), 1]
    assert batch.position_ids[1].tolist()[-4:] == [0, 1, 2, 1]
    assert batch.block_position_ids.tolist() == [[0] * (width - 1) + [1]] * 2
    assert batch.context[1].tolist() == [False] * (width - 4) + [True] * 3 + [False]
    assert batch.labels is None


def test_a_training_row_learns_the_blank_and_its_end(tokenizer):
    batch = glm_training_batch(tokenizer, ["天气[gMASK]", "[MASK]"], ["不错", "公园散步"], max_target=3)
    assert batch.labels is not None
    for row, (text, target) in enumerate([("天气[gMASK]", "不错"), ("[MASK]", "公园散步")]):
        ids = tokenizer.encode([text])[0].input_ids
        blank = [*tokenizer.encode([target])[0].input_ids[1:-1], END][:3]
        length = len(ids) + 1 + len(blank)
        place = ids.index(END if row == 0 else PIECES + 3)
        assert batch.ids[row, :length].tolist() == [*ids, START, *blank]
        assert batch.labels[row, :length].tolist() == [-100] * (len(ids) + 1) + blank
        assert batch.position_ids[row, :length].tolist() == [*range(len(ids)), *[place] * (1 + len(blank))]
        assert batch.block_position_ids[row, :length].tolist() == [0] * len(ids) + list(range(1, len(blank) + 2))
        assert batch.mask[row].tolist() == [place < length for place in range(batch.ids.shape[1])]


def test_texts_without_a_mask_and_folders_without_a_model_are_refused(tokenizer, folder):
    with pytest.raises(DataError, match=r"row 2: '天气' has none of \[MASK\], \[sMASK\], \[gMASK\]"):
        glm_prompts(tokenizer, ["[MASK]", "天气"])
    with pytest.raises(DataError, match="found 1 targets and 2 texts"):
        glm_training_batch(tokenizer, ["[MASK]", "[MASK]"], ["天"])
    shutil.copy(folder / "cog-pretrain.model", folder / "other.model")
    with pytest.raises(DataError, match=r"expected one sentencepiece model, .* found cog-pretrain\.model, other\.model"):
        load_tokenizer(folder)
