"""Text comes in whole characters, not past a stop string, and in pieces that add up to the whole."""

import pytest
from tiny_writers import folder

from modelzoo import load_tokenizer
from modelzoo.generation.written_text import WrittenText, find_stop, text_after


class Sentencepiece:
    """Decodes as a sentencepiece tokenizer does: the space before the first word is dropped."""

    words = ("▁Once", "▁upon", "▁a", "time", "▁time", "<end>")

    def decode(self, ids, *, skip_special_tokens=True):
        return "".join(self.words[each] for each in ids if each != 5).replace("▁", " ").removeprefix(" ")


@pytest.fixture(name="tokenizer")
def byte_level():
    return load_tokenizer(folder("gpt2"))


def ids_of(tokenizer, text):
    return tokenizer.encode([text])[0].input_ids


def test_a_space_before_the_first_new_word_is_kept():
    assert text_after(Sentencepiece(), [0, 1], [2, 4]) == " a time"
    assert text_after(Sentencepiece(), [0, 1], [3]) == "time"
    assert text_after(Sentencepiece(), [], [2, 4]) == "a time"
    assert text_after(Sentencepiece(), [0, 1], [5]) == ""


def test_pieces_add_up_and_characters_are_whole(tokenizer):
    written = WrittenText(tokenizer, ids_of(tokenizer, "ab"))
    pieces = [written.add(each) for each in ids_of(tokenizer, "cé Zé.")]
    assert pieces == ["c", "", "é", " ", "Z", "", "é", "."]
    assert written.finish() == ""
    assert written.text == "cé Zé."


def test_half_a_character_at_the_end_is_said_when_the_row_ends(tokenizer):
    written = WrittenText(tokenizer, [])
    pieces = [written.add(each) for each in ids_of(tokenizer, "cé")[:-1]]
    assert pieces == ["c", ""]
    assert written.finish() == "\ufffd"
    assert written.text == "c\ufffd"


def test_what_may_begin_a_stop_string_is_held_back(tokenizer):
    written = WrittenText(tokenizer, [], ["abc", "bd"])
    assert [written.add(each) for each in ids_of(tokenizer, "xabxababc")] == ["x", "", "", "abx", "", "", "ab", "", ""]
    assert written.is_stopped
    assert written.text == "xabxab"
    assert written.finish() == ""


def test_the_first_stop_string_counts(tokenizer):
    written = WrittenText(tokenizer, ids_of(tokenizer, "ab"), ["d", "c"])
    assert written.add(ids_of(tokenizer, "c")[0]) == ""
    assert written.is_stopped
    assert written.text == ""
    assert find_stop("xcd", ["d", "c"]) == 1
    assert find_stop("x", ["d", "c"]) is None


def test_a_stop_string_in_the_prompt_does_not_stop(tokenizer):
    written = WrittenText(tokenizer, ids_of(tokenizer, "ab"), ["b", "bc"])
    assert written.add(ids_of(tokenizer, "c")[0]) == "c"
    assert not written.is_stopped


def test_a_decoder_that_changes_its_mind_says_nothing_twice():
    class Unsteady:
        def decode(self, ids, *, skip_special_tokens=True):
            return {0: "", 1: "a b", 2: "ab c", 3: "a b c"}[len(ids)]

    written = WrittenText(Unsteady(), [])
    assert [written.add(each) for each in (7, 7, 7)] == ["a b", "", " c"]
