"""Our tokenizer gives transformers' ids, types, cuts and texts."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_tokenizers import NASTY_TEXTS, bert_folder, byte_level_folder, write_json
from transformers import AutoTokenizer

from modelzoo.data import Tokenizer, check_vocab, load_tokenizer
from modelzoo.errors import DataError

FOLDERS = {
    "bert": (bert_folder, {}),
    "bert_cased": (bert_folder, {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}),
    "bert_accents": (bert_folder, {"do_lower_case": True, "strip_accents": False}),
    "bert_no_chinese": (bert_folder, {"do_lower_case": False, "tokenize_chinese_chars": False, "model_max_length": 16}),
    "bert_left": (bert_folder, {"truncation_side": "left"}),
    "bert_added": (bert_folder, {"extra_special_tokens": ["<e1>", "<e2>"], "mask_token": "[MASK2]"}),
    "roberta": (byte_level_folder, {}),
    "roberta_space": (byte_level_folder, {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizerFast"}),
    "roberta_types": (byte_level_folder, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}),
}


def make(name: str, tmp_path: Path) -> Path:
    build, config = FOLDERS[name]
    return build(tmp_path / name, config=config)


def assert_same(ours: Tokenizer, theirs, texts: list[str], pairs: list[str] | None, **options) -> None:
    options = {"max_length": None, "truncation": "longest_first"} | options
    encoded = ours.encode(texts, pairs, **options)
    cut = options if options["max_length"] else {}
    expected = theirs(texts, pairs, **cut)
    whole = theirs(texts, pairs)
    assert [item.input_ids for item in encoded] == expected["input_ids"]
    types = expected.get("token_type_ids", [None] * len(texts))
    assert [item.token_type_ids for item in encoded] == types
    lost = [len(full) - len(short) for full, short in zip(whole["input_ids"], expected["input_ids"], strict=True)]
    assert [item.truncated for item in encoded] == lost
    for item, ids in zip(encoded, expected["input_ids"], strict=True):
        assert ours.decode(item.input_ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_types_cuts_and_texts_equal_transformers(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    second = NASTY_TEXTS[::-1]
    for pairs in (None, second):
        assert_same(ours, theirs, NASTY_TEXTS, pairs)
        for max_length in (5, 9, 24):
            assert_same(ours, theirs, NASTY_TEXTS, pairs, max_length=max_length)
    assert_same(ours, theirs, NASTY_TEXTS, ["the cat"] * len(NASTY_TEXTS), max_length=400, truncation="only_first")
    assert_same(ours, theirs, ["the cat"] * len(NASTY_TEXTS), NASTY_TEXTS, max_length=24, truncation="only_second")
    assert ours.vocab_size == len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    for role in ("bos", "eos", "unk", "cls", "sep", "pad", "mask"):
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id")


@pytest.mark.parametrize("build", [bert_folder, byte_level_folder])
def test_a_saved_tokenizer_json_gives_the_same_ids(build, tmp_path: Path) -> None:
    first = build(tmp_path / "first", config={})
    saved = tmp_path / "saved"
    reference = AutoTokenizer.from_pretrained(str(first))
    reference.add_tokens(["<new>", "dogcat"])
    reference.save_pretrained(str(saved))
    write_json(saved / "config.json", {"model_type": "bert" if build is bert_folder else "roberta"})
    ours = load_tokenizer(saved)
    texts = [*NASTY_TEXTS, "the <new> dogcat sat"]
    assert_same(ours, reference, texts, texts[::-1], max_length=30)
    assert_same(ours, AutoTokenizer.from_pretrained(str(saved)), texts, None)


def test_gpt2_has_no_special_tokens_around_a_text(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={}, model_type="gpt2")
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    assert_same(ours, theirs, NASTY_TEXTS, NASTY_TEXTS[::-1])
    assert ours.pad_id is None
    assert ours.num_special_tokens() == 0


def test_gpt2_puts_begin_and_end_where_the_config_asks(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={"add_bos_token": True, "add_eos_token": True}, model_type="gpt2")
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    assert_same(ours, theirs, NASTY_TEXTS, NASTY_TEXTS[::-1])
    assert ours.encode(["cat"])[0].input_ids[0] == ours.bos_id


def test_special_tokens_map_wins_over_the_config(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={"tokenizer_class": "RobertaTokenizer", "mask_token": "<other>"})
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    write_json(folder / "special_tokens_map.json", {"mask_token": mask})
    write_json(folder / "added_tokens.json", {"<added>": 275})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    assert_same(ours, theirs, ["the <mask> cat", "the   <mask>cat <added>x"], None)
    assert ours.tokens([ours.mask_id or 0]) == ["<mask>"]


def test_byte_level_decoding_gives_the_text_back(tmp_path: Path) -> None:
    ours = load_tokenizer(byte_level_folder(tmp_path, config={}))
    for text in [text for text in NASTY_TEXTS if "<" not in text]:
        assert ours.decode(ours.encode([text])[0].input_ids) == text


def test_roberta_pair_form(tmp_path: Path) -> None:
    ours = load_tokenizer(byte_level_folder(tmp_path, config={}))
    item = ours.encode(["cat"], ["the"])[0]
    assert ours.tokens(item.input_ids) == ["<s>", "cat", "</s>", "</s>", "the", "</s>"]
    assert item.token_type_ids is None


def test_model_type_decides_where_the_config_names_no_class(tmp_path: Path) -> None:
    roberta = byte_level_folder(tmp_path / "roberta", model_type="roberta")
    unknown = byte_level_folder(tmp_path / "unknown", model_type=None)
    assert load_tokenizer(roberta).cls_id == load_tokenizer(unknown).cls_id == 0
    assert load_tokenizer(bert_folder(tmp_path / "plain", model_type=None)).cls_id == 2


def test_other_classes_are_read_through_transformers(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, config={"tokenizer_class": "DistilBertTokenizer"})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    assert_same(ours, theirs, NASTY_TEXTS, NASTY_TEXTS[::-1], max_length=20)


@pytest.mark.parametrize("length", [100, 17, 10, 3])
@pytest.mark.parametrize(("max_length", "stride"), [(10, 2), (8, 5), (12, 0)])
def test_windows_equal_transformers_and_cover_every_token(length: int, max_length: int, stride: int, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, config={})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    text = " ".join("abcdefghij"[number % 10] for number in range(length))
    options = {"max_length": max_length, "stride": stride}
    expected = theirs([text, "cat"], **options, truncation=True, return_overflowing_tokens=True, return_offsets_mapping=True)
    windows = ours.windows([text, "cat"], **options)
    assert [window.input_ids for window in windows] == expected["input_ids"]
    assert [window.row for window in windows] == expected["overflow_to_sample_mapping"]
    assert [window.offsets for window in windows] == expected["offset_mapping"]
    covered = {offset for window in windows if window.row == 0 for offset in window.offsets or () if offset != (0, 0)}
    assert len(covered) == length


def test_100_tokens_in_windows_of_10_with_stride_2_are_13(tmp_path: Path) -> None:
    ours = load_tokenizer(byte_level_folder(tmp_path, config={}, model_type="gpt2"))
    windows = ours.windows(["x" * 100], max_length=10, stride=2)
    assert len(windows) == 13
    assert {place for window in windows for place in window.offsets or ()} == {(start, start + 1) for start in range(100)}


def test_pair_windows_repeat_the_question(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    questions, contexts = ["the cat", "cat"], ["the cat sat " * 9, "cat"]
    options = {"max_length": 24, "stride": 6}
    windows = ours.windows(questions, contexts, **options)
    expected = theirs(questions, contexts, **options, truncation="only_second", return_overflowing_tokens=True)
    assert [window.input_ids for window in windows] == expected["input_ids"]


@pytest.mark.parametrize("build", [bert_folder, byte_level_folder])
def test_words_equal_transformers(build, tmp_path: Path) -> None:
    folder = build(tmp_path, config={"add_prefix_space": True} if build is byte_level_folder else {})
    theirs = AutoTokenizer.from_pretrained(str(folder))
    words = [["the", "cat", "supercat", "中文"], ["cat"]]
    expected = theirs(words, is_split_into_words=True, max_length=12, truncation=True)
    plain = load_tokenizer(build(tmp_path / "plain", config={}))  # without add_prefix_space: words must not be glued
    for ours in (load_tokenizer(folder), plain):
        encoded = ours.encode_words(words, 12)
        assert [item.input_ids for item in encoded] == expected["input_ids"]
        assert [item.word_ids for item in encoded] == [expected.word_ids(row) for row in range(2)]
    assert plain.encode(["cat"])[0].input_ids != plain.encode([" cat"])[0].input_ids or build is bert_folder


def test_encoding_keeps_no_state(tmp_path: Path) -> None:
    ours = load_tokenizer(bert_folder(tmp_path, config={}))
    before = ours.encode(["the cat sat on the mat"])[0].input_ids
    ours.encode(["the cat sat on the mat"], max_length=4)
    ours.windows(["the cat sat on the mat"], max_length=4, stride=1)
    with pytest.raises(DataError):
        ours.encode(["the cat sat"], ["a"], max_length=4, truncation="only_second")
    assert ours.encode(["the cat sat on the mat"])[0].input_ids == before


def test_too_long_is_refused_with_row_length_and_limit(tmp_path: Path) -> None:
    ours = load_tokenizer(bert_folder(tmp_path, config={}))
    with pytest.raises(DataError, match=r"row 2 has 18 tokens, limit 16; 2 rows are too long; shorten the text"):
        ours.encode(["a", "a " * 16, "a " * 20], max_length=16, truncation="error")


def test_a_second_text_that_cannot_absorb_the_cut_is_named(tmp_path: Path) -> None:
    ours = load_tokenizer(bert_folder(tmp_path, config={}))
    with pytest.raises(DataError, match=r"row 2 has 13 tokens, limit 8: the text that truncation=only_second may cut is too"):
        ours.encode(["a", "a " * 8], ["cat " * 9, "cat cat"], max_length=8, truncation="only_second")
    with pytest.raises(DataError, match="row 1 has 12 tokens, limit 8, and truncation=only_second cuts the second text"):
        ours.encode(["a " * 10], max_length=8, truncation="only_second")
    with pytest.raises(DataError, match="max_length=3 leaves no room for text beside 3 special tokens"):
        ours.encode(["a " * 10], ["a"], max_length=3)


def test_a_question_that_leaves_no_room_for_a_window_is_named(tmp_path: Path) -> None:
    ours = load_tokenizer(bert_folder(tmp_path, config={}))
    message = "row 2: max_length=10 leaves 2 tokens of room for a window beside 3 special tokens and 5 tokens of the first text"
    with pytest.raises(DataError, match=message):
        ours.windows(["cat", "cat cat cat cat cat"], ["a " * 30] * 2, max_length=10, stride=2)


def test_bad_texts_are_named(tmp_path: Path) -> None:
    ours = load_tokenizer(bert_folder(tmp_path, config={}))
    with pytest.raises(DataError, match=r"row 2: expected a text, found 7 \(int\)"):
        ours.encode(["a", 7])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"row 1: expected Unicode text, found a lone surrogate '\\ud83d' at character 2"):
        ours.encode(["a \ud83d b"])
    with pytest.raises(DataError, match="expected as many second texts as first ones, found 1 and 2"):
        ours.encode(["a", "b"], ["c"])
    with pytest.raises(DataError, match="position 1: id 9999 is not in the vocabulary of"):
        ours.tokens([0, 9999])


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, config={"extra_special_tokens": ["<new>"]})
    ours = load_tokenizer(folder)
    check_vocab(ours, len(ours))
    rows = len(ours) - 1
    with pytest.raises(DataError, match=rf"len\(tokenizer\)={len(ours)} > {rows} rows: token '<new>' has id {rows}"):
        check_vocab(ours, rows)


def test_loading_a_tokenizer_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, config={})
    code = f"""if True:
        import sys
        from modelzoo.data import load_tokenizer
        load_tokenizer({str(folder)!r}).encode(["cat"])
        heavy = {{"torch", "transformers", "datasets", "pyarrow"}} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
