"""CPM-Bee's tokens and trees by hand, from the description in OpenBMB's repository."""

import pytest
from bee_vocabulary import IDS, LINES, NUM_TOKENS, bee_tokenizer

from modelzoo.data.cpm_bee_batches import bee_prompts, bee_training_batch
from modelzoo.data.cpm_bee_pieces import escaped, read_bee_vocabulary
from modelzoo.data.cpm_bee_trees import read_trees
from modelzoo.errors import DataError

TREE = {"input": "今天天气好<mask_3> 龘龘好<mask_3><mask_9>", "<ans>": ""}
TEXT = [2, 9, 11, 12, 6, 7, 1, 12, 6, 6, 3]  # the two characters that no token has are one unknown word
CONTEXT = [2, 4, 3, 2, 13, 3, *TEXT, 2, 5, 3]  # <root>, the key, the text, <ans>
RELATIONS = [
    0, 2, 3, 2, 3,
    9, 0, 2, 10, 11,
    17, 9, 0, 18, 19,
    9, 10, 11, 0, 2,
    17, 18, 19, 9, 0,
]  # fmt: skip  # steps up * 8 + steps down + 1; 0 within a segment


@pytest.fixture
def tokenizer(tmp_path):
    return bee_tokenizer(tmp_path)


def test_ids_are_lines_without_the_empty_ones_and_marks_are_a_space_and_a_line(tokenizer):
    assert tokenizer.vocab_size == NUM_TOKENS == len(LINES) - 1
    assert tokenizer.get_vocab() == {{"</_>": " ", "</n>": "\n"}.get(token, token): number for token, number in IDS.items()}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id) == (2, 3, 0, 1, 6)


def test_a_plain_text_is_cut_by_the_longest_token_behind_a_begin(tokenizer):
    found = tokenizer.encode(["今天天气 天\n好?", "<<天>< <mask>"[:3], "龘龘天<mask><ans_7>"])
    assert [each.input_ids for each in found] == [[2, 9, 11, 7, 10, 8, 12, 14], [2, 15, 10], [2, 1, 10, 6, 5]]
    assert tokenizer.decode(found[0].input_ids) == "今天天气 天\n好?"
    assert tokenizer.decode(tokenizer.encode([escaped("天<好")])[0].input_ids) == "天<好"
    offsets = tokenizer.encode(["龘龘<<天<mask>"], offsets=True)[0].offsets
    assert offsets[1:] == [(0, 2), (2, 4), (4, 5), (5, 11)]


def test_a_token_that_is_spelled_out_is_none(tokenizer):
    """Between escaped brackets even the name of a special token is text."""
    assert tokenizer.encode(["<<s>"])[0].input_ids == [2, 15, 1]


def test_a_tree_is_segments_relations_and_numbers(tokenizer):
    (tree,) = read_trees(tokenizer, [TREE])
    assert tree.ids == CONTEXT
    assert tree.numbers == [0] * 15 + [1] + [0] * 4  # <mask_9> is the second of its kind
    assert tree.segments == [0] * 3 + [1] * 3 + [2] * 11 + [3] * 3
    assert (tree.count, tree.relations) == (5, RELATIONS)
    assert [(answer.path, answer.segment) for answer in tree.answers] == [(("<ans>",), 4)]
    assert tree.words == {(6, 0): "<mask_3>", (1, 0): "龘龘", (6, 1): "<mask_9>", (5, 0): "<ans_1>"}


def test_deep_trees_share_the_last_step(tokenizer):
    (tree,) = read_trees(tokenizer, [{"input": {"天": {"好": "?"}}, "<ans>": {"天": "", "好": ""}}], max_depth=3)
    assert tree.count == 10
    assert [answer.path for answer in tree.answers] == [("<ans>", "天"), ("<ans>", "好")]
    assert tree.relations[4 * 10] == 2 * 3 + 1  # four steps up count as two
    assert tree.relations[7 * 10 + 9] == 2 * 3 + 2 + 1


def test_a_prompt_ends_where_its_answer_begins(tokenizer):
    batch = bee_prompts(tokenizer, [TREE, {"<ans>": ""}], NUM_TOKENS)
    assert batch.ids.tolist() == [[*CONTEXT, 2], [0] * 14 + [2, 4, 3, 2, 5, 3, 2]]
    assert batch.mask.sum(1).tolist() == [21, 7]
    assert batch.context[0].tolist() == [True] * 20 + [False]
    segments, counts, offsets, relations = batch.segments
    assert segments[1].tolist() == [0] * 14 + [0, 0, 0, 1, 1, 1, 2]
    assert (counts[1].tolist(), offsets.any().item()) == ([0] * 14 + [3] * 7, False)
    assert relations.tolist() == [RELATIONS, [0, 2, 3, 9, 0, 2, 17, 9, 0] + [0] * 16]
    assert [each.tolist() for each in batch.extra] == [[6], [1]]
    assert batch.words == ({6: "<mask_3>", 1: "龘龘", 16: "<mask_9>"}, {})
    assert batch.labels is None


def test_a_second_answer_reads_the_first(tokenizer):
    tree = {"input": "<mask_1><mask_2>", "<ans>": {"天": "", "好": ""}}
    batch = bee_prompts(tokenizer, [tree], NUM_TOKENS, [[[12, 16]]])
    assert batch.ids[0, -4:].tolist() == [2, 12, 6, 2]
    assert batch.numbers[0, -4:].tolist() == [0, 0, 1, 0]
    assert batch.segments[0][0, -4:].tolist() == [5, 5, 5, 7]
    assert batch.context[0, -4:].any().item() is False


def test_training_rows_learn_every_answer_and_its_end(tokenizer):
    tree = {"<ans>": {"天": "好龘", "好": "天<mask_5><mask_6>"}, "input": "龘?"}
    batch = bee_training_batch(tokenizer, [tree], NUM_TOKENS)
    # Words are numbered where they stand in the tree: the answer's unknown word is met before the input's, and is another one.
    context = [2, 4, 3, 2, 5, 3, 2, 10, 3, 2, 12, 3, 2, 13, 3, 2, 1, 14, 3]
    assert batch.ids[0].tolist() == [*context, 2, 12, 1, 2, 10, 6, 6, 3]
    assert batch.labels is not None
    assert batch.labels[0].tolist() == [-100] * 20 + [12, 1, 3, 10, 6, 16, 3]
    assert batch.numbers[0].tolist()[-8:] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert batch.segments[0][0].tolist()[-8:] == [3, 3, 3, 5, 5, 5, 5, 5]
    assert [each.tolist() for each in batch.extra] == [[6], [1]]


def test_examples_are_context_with_segments_of_their_own(tokenizer):
    tree, example = {"<ans>": "", "input": "<mask_1>"}, {"input": "<mask_2>龘", "<ans>": "天<mask_1>"}
    (read,) = read_trees(tokenizer, [tree], examples=[example, example])
    alone = read_trees(tokenizer, [tree])[0]
    size, more = len(alone.ids), [2, 4, 3, 2, 13, 3, 2, 6, 1, 3, 2, 5, 3, 2, 10, 6]
    assert read.ids == [*alone.ids, *more, *more]
    # The tree's <mask_1> comes first; the examples' <mask_2> is the second kind, and theirs is the tree's again.
    assert read.numbers[size:] == [0] * 7 + [1] + [0] * 15 + [1] + [0] * 8
    assert read.samples == [0] * size + [1] * 16 + [2] * 16
    assert read.segments[size : size + 16] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert read.offsets == [0] * size + [25] * 16 + [50] * 16
    assert read.counts == [5] * (size + 32)
    assert read.relations[25:] == RELATIONS * 2
    assert read.words[1, 0] == "龘"
    with pytest.raises(DataError, match='example 1: expected a tree with the key "<ans>"'):
        read_trees(tokenizer, [tree], examples=[{}])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"input": "好"}, 'row 1: expected a tree with the key "<ans>", as .*, found input'),
        ("好", "row 1: expected a tree with the key \"<ans>\", as .*, found '好'"),
        ({"<ans>": {}}, 'row 1: expected a text below "<ans>", found an empty tree'),
        ({"input": 3, "<ans>": ""}, "row 1: input: expected a text or a tree of texts, found 3"),
        ({"input": {"天": ["好"]}, "<ans>": ""}, r"row 1: input\.天: expected a text or a tree of texts, found \['好'\]"),
        ({"input": "好<mask", "<ans>": ""}, "row 1: '好<mask': character 1 opens a special token, and it does not end"),
        ({"input": "<ma<sk>", "<ans>": ""}, "row 1: '<ma<sk>': character 0 .*, and another one opens at 3; write <<"),
        ({"input": "<nobody_1>", "<ans>": ""}, "row 1: '<nobody_1>' is no special token of CPM-Bee; write <<"),
    ],
)
def test_what_is_no_tree_is_refused_by_row_and_place(tokenizer, tree, message):
    with pytest.raises(DataError, match=message):
        read_trees(tokenizer, [tree])


def test_a_token_that_stands_twice_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_text("<pad>\n天\n\n天\n")
    with pytest.raises(DataError, match=r"vocab\.txt: expected each token once, found '天' again, first as id 1"):
        read_bee_vocabulary(tmp_path / "vocab.txt")
