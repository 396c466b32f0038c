"""CPM's tokenizers on real vocabularies: equal to their definitions written out, to transformers where it works, to golden ids."""
# ruff: noqa: RUF001  # full-width signs are what Chinese texts have

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

from modelzoo.data import Tokenizer, load_tokenizer
from modelzoo.data.cpm_tokenizer import NUM_SENTINELS, cpm_kind, read_cpm_backend
from modelzoo.errors import DataError

jieba = pytest.importorskip("jieba", reason="jieba is not installed: pip install 'modelzoo-hub[cpm]'")
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: pip install 'modelzoo-hub[cpm]'")
MARKS = str.maketrans(" \n", "▂▃")
TEXTS = [
    "今天天气不错，我们去公园散步吧。\n第二行 with English words, 2022年12.5%",
    "  两个空格\n\n",
    "ABC\t龘😀 unk 天",
    "",
    "“引号”——破折号……１２３ＡＢＣ",
    "字" * 300,
]
GOLDEN = {
    "cpm1": [837, 259, 497, 788, 8, 9, 101, 91, 3165, 11851, 133, 8, 12, 8, 3, 306, 237, 8, 10, 5599],
    "cpm1-modelcenter": [
        3601,
        9810,
        2268,
        9,
        13662,
        7032,
        4996,
        15346,
        7871,
        30858,
        7,
        22419,
        25568,
        8,
        1005,
        947,
        8,
        369,
        803,
        748,
    ],
    "cpm2": [739, 3775, 696, 16, 103, 93, 2627, 9693, 134, 12, 3, 287, 224, 10, 4567, 10, 15331, 10, 9464, 271],
}


def folder_of(kind: str, testdata: Path, place: Path) -> Path:
    """A folder with the real vocabulary of a family; for CPM-Ant one that is made of CPM-1's."""
    source = testdata / "tokenizers"
    if kind == "cpm1":
        return source / "cpm1"
    if kind == "cpm2":
        return source / "cpm2" / "bpe_cn"
    if kind == "cpm1-modelcenter":
        shutil.copy(source / "cpm1" / "modelcenter_vocab.txt", place / "vocab.txt")
        return place
    words = [line for line in (source / "cpm2" / "bpe_cn" / "vocab.txt").read_text().split("\n")[8:9000] if line]
    special = ["<pad>", "<unk>", "<s>", "</s>", "<d>", "</d>", "</n>", "</_>"]
    (place / "vocab.txt").write_text("\n".join(special + [word for word in words if word not in special]) + "\n")
    return place


@pytest.fixture
def kind(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(kind, testdata, tmp_path) -> Tokenizer:
    folder = folder_of(kind, testdata, tmp_path)
    return Tokenizer(read_cpm_backend(folder, kind), folder)


def every(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds or ["cpm1", "cpm1-modelcenter", "cpm2", "cpmant"], indirect=True)


def real_texts(testdata: Path) -> list[str]:
    rows = json.loads((testdata / "chinese_poetry" / "tang300.json").read_text())[:40]
    return [*TEXTS, *("\n".join([row.get("title", ""), *row["paragraphs"]]) for row in rows)]


def naive_word_pieces(text: str, vocabulary: dict[str, int], space: str, line: str) -> list[int]:
    """ModelCenter's rule: marks, then jieba, then the longest token from the left; one unknown a character."""
    text = text.replace("\n", "\ufff3").replace(line, "\ufff3").replace(" ", "\ufff2").replace(space, "\ufff2")
    vocabulary = vocabulary | {"\ufff2": vocabulary[space], "\ufff3": vocabulary[line]}
    ids = []
    for word in jieba.cut(text, cut_all=False):
        if len(word) > 200:
            ids.append(vocabulary["<unk>"])
            continue
        start = 0
        while start < len(word):
            end = next((end for end in range(len(word), start, -1) if word[start:end] in vocabulary), None)
            ids.append(vocabulary["<unk>"] if end is None else vocabulary[word[start:end]])
            start = start + 1 if end is None else end
    return ids


@every("cpm1")
def test_cpm1_is_jieba_then_sentencepiece(tokenizer, testdata):
    model = sentencepiece.SentencePieceProcessor()
    model.Load(str(testdata / "tokenizers" / "cpm1" / "chinese_vocab.model"))
    texts = real_texts(testdata)
    for text, found in zip(texts, tokenizer.encode(texts), strict=True):
        joined = " ".join(word.translate(MARKS) for word in jieba.cut(text, cut_all=False))
        assert found.input_ids == model.encode(joined)
        expected = model.decode(found.input_ids).replace(" ", "").translate(str.maketrans("▂▃", " \n"))
        assert tokenizer.decode(found.input_ids, skip_special_tokens=False) == expected
    assert tokenizer.get_vocab() == json.loads((testdata / "tokenizers" / "cpm1" / "vocab.json").read_text())


@every("cpm1")
def test_cpm1_equals_transformers_given_the_words(tokenizer, testdata, tmp_path):
    """transformers' own class no longer asks jieba, so that spaces and lines are lost; given the words it agrees."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("rjieba", reason="transformers' CpmTokenizer needs rjieba")
    shutil.copy(testdata / "tokenizers" / "cpm1" / "chinese_vocab.model", tmp_path / "spiece.model")
    theirs = transformers.CpmTokenizer(str(tmp_path / "spiece.model"))
    for text in real_texts(testdata):
        joined = " ".join(word.translate(MARKS) for word in jieba.cut(text, cut_all=False))
        if not any(mark in text for mark in "“”…"):  # transformers replaces quotes and splits accents first
            assert tokenizer.encode([text])[0].input_ids == theirs.encode(joined, add_special_tokens=False), text


@every("cpm1-modelcenter", "cpm2")
def test_vocabulary_files_are_cut_by_the_longest_token(tokenizer, kind, testdata):
    space, line = ("▂", "▃") if kind == "cpm2" else ("</_>", "</n>")
    texts = [*real_texts(testdata), f"a{space}b{line}c", "甲" * 201]
    for text, found in zip(texts, tokenizer.encode(texts), strict=True):
        assert found.input_ids == naive_word_pieces(text, tokenizer.get_vocab(), space, line), text


@every("cpmant")
def test_cpm_ant_equals_transformers(tokenizer, testdata):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("rjieba", reason="transformers' CpmAntTokenizer needs rjieba")
    theirs = transformers.CpmAntTokenizer(str(tokenizer.folder / "vocab.txt"))
    texts = [*real_texts(testdata), "一段<d>文本</d>结束</s>", "写出来的</n>和</_>"]
    for text, found in zip(texts, tokenizer.encode(texts), strict=True):
        assert found.input_ids == theirs(text)["input_ids"], text
    pair = tokenizer.encode(["天气"], ["公园"])[0]
    assert pair.input_ids == theirs("天气", "公园")["input_ids"]
    assert tokenizer.decode(pair.input_ids) == theirs.decode(pair.input_ids) == "天气公园"


@every("cpm1", "cpm1-modelcenter", "cpm2")
def test_golden_ids(tokenizer, kind):
    assert tokenizer.encode(TEXTS[:1])[0].input_ids[:20] == GOLDEN[kind]


@every("cpm1-modelcenter", "cpm2", "cpmant")
def test_known_texts_come_back(tokenizer):
    text = "今天 天气不错\n我们去公园。\n\n  好"
    assert tokenizer.decode(tokenizer.encode([text])[0].input_ids) == text


@every()
def test_offsets_are_the_characters_of_each_token(tokenizer):
    for text in TEXTS:
        found = tokenizer.encode([text], offsets=True)[0]
        places = [place for place, number in zip(found.offsets, found.sequence_ids, strict=True) if number is not None]
        assert "".join(text[start:end] for start, end in places) == text
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


@every()
def test_words_pairs_truncation_and_windows_are_as_of_other_tokenizers(tokenizer):
    special = tokenizer.num_special_tokens()
    words = tokenizer.encode_words([["今天", "天气 不错"]])[0]
    assert [number for number in words.word_ids if number is not None] == [0] + [1] * (len(words.input_ids) - 1 - special)
    whole = tokenizer.encode(["今天天气不错，我们去公园散步吧。"])[0].input_ids
    cut = tokenizer.encode(["今天天气不错，我们去公园散步吧。"], max_length=5)[0]
    assert (cut.input_ids, cut.truncated) == (whole[:5], len(whole) - 5)
    with pytest.raises(DataError, match=f"row 1 has {len(whole)} tokens, limit 5"):
        tokenizer.encode(["今天天气不错，我们去公园散步吧。"], max_length=5, truncation="error")
    windows = tokenizer.windows(["今天天气不错，我们去公园散步吧。"], max_length=5, stride=1)
    assert windows[0].input_ids == whole[:5]
    assert windows[1].input_ids[special:][0] == whole[4]
    assert windows[1].offsets[special] == tokenizer.encode(["今天天气不错，我们去公园散步吧。"], offsets=True)[0].offsets[4]
    one, two = (tokenizer.encode([text])[0].input_ids for text in ("今天", "天气不错"))
    assert tokenizer.encode(["今天"], ["天气不错"])[0].input_ids == one + two


@every("cpm2")
def test_cpm2_has_its_sentinels(tokenizer):
    vocabulary = tokenizer.get_vocab()
    assert [vocabulary[f"<s_{number}>"] for number in range(NUM_SENTINELS)] == list(range(26050, 26240))
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (5, 1, 7, 0)


@every("cpm1")
def test_bad_texts_are_refused_by_row(tokenizer):
    with pytest.raises(DataError, match="row 2: expected a text, found 3"):
        tokenizer.encode(["好", 3])
    with pytest.raises(DataError, match="row 1: expected Unicode text, found a lone surrogate"):
        tokenizer.encode(["\ud800"])


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({"model_type": "gpt2", "tokenizer_class": "CpmTokenizer"}, ["spiece.model"], "cpm1"),
        ({"model_type": "cpm1"}, ["vocab.txt"], "cpm1-modelcenter"),
        ({"model_type": "cpm1"}, ["chinese_vocab.model"], "cpm1"),
        ({"model_type": "cpm2"}, ["vocab.txt"], "cpm2"),
        ({"model_type": "cpmant"}, ["vocab.txt"], "cpmant"),
        ({"model_type": "cpmant", "tokenizer_class": "BertTokenizer"}, ["vocab.txt"], None),
        ({"model_type": "gpt2"}, ["vocab.json"], None),
        ({}, ["vocab.txt"], None),
    ],
)
def test_a_folder_says_which_tokenizer_it_has(config, files, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in files:
        (tmp_path / name).write_text("")
    assert cpm_kind(tmp_path) == expected


def test_load_tokenizer_takes_the_hubs_cpm1(testdata, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "tokenizer_class": "CpmTokenizer"}))
    shutil.copy(testdata / "tokenizers" / "cpm1" / "chinese_vocab.model", tmp_path / "spiece.model")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(TEXTS[:1])[0].input_ids[:20] == GOLDEN["cpm1"]


@pytest.mark.parametrize("name", ["jieba", "sentencepiece"])
def test_a_missing_package_is_named_with_its_extra(name, testdata, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks a module that cannot be imported
    with pytest.raises(DataError, match=rf"CPM need {name}, which is not installed; pip install 'modelzoo-hub\[cpm\]'"):
        read_cpm_backend(testdata / "tokenizers" / "cpm1", "cpm1")


def test_broken_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"expected vocab.txt, found an empty folder"):
        read_cpm_backend(tmp_path, "cpm2")
    with pytest.raises(DataError, match=r"expected spiece.model or chinese_vocab.model, found an empty folder"):
        read_cpm_backend(tmp_path, "cpm1")
    (tmp_path / "spiece.model").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"spiece.model: expected a sentencepiece model, found"):
        read_cpm_backend(tmp_path, "cpm1")
    (tmp_path / "vocab.txt").write_text("")
    with pytest.raises(DataError, match=r"vocab.txt: expected one token a line, found an empty file"):
        read_cpm_backend(tmp_path, "cpm2")
    (tmp_path / "vocab.txt").write_bytes(b"<unk>\n\xff\n")
    with pytest.raises(DataError, match=r"vocab.txt: expected UTF-8, found byte 0xff at 6"):
        read_cpm_backend(tmp_path, "cpm2")
    (tmp_path / "vocab.txt").write_text("<unk>\n<pad>\n")
    with pytest.raises(DataError, match=r"vocab.txt: expected the tokens of cpm2, found none of these: ▂, ▃, <s>, <eod>, <sep>"):
        read_cpm_backend(tmp_path, "cpm2")
