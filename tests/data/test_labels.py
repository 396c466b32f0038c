"""Labels get the same id however a file spells them."""

import math

import numpy as np
import pytest

from modelzoo.data.labels import LabelTable, collect_names, label_name, lookalikes
from modelzoo.errors import DataError


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([True, False, True], ("false", "true")),
        ([2, 0, 10, 1], ("0", "1", "2", "10")),
        (["2", "0", "10"], ("0", "2", "10")),
        ([100, 116, 103], ("100", "103", "116")),
        ([1.0, 0.0], ("0", "1")),
        (["neutral", "entailment", "contradiction"], ("contradiction", "entailment", "neutral")),
        (["True", "False"], ("False", "True")),
    ],
)
def test_names_are_sorted_and_do_not_depend_on_the_order_of_rows(values: list[object], names: tuple[str, ...]) -> None:
    assert collect_names(values, 100) == names
    assert collect_names(values[::-1], 100) == names


def test_ids_follow_the_given_names() -> None:
    table = LabelTable(["no", "yes"])
    assert [table.id(value) for value in ("yes", "no", 1, 0, 1.0)] == [1, 0, 1, 0, 1]
    assert LabelTable(["100", "101"]).id(101) == 1  # a name comes before a number
    assert LabelTable(["false", "true"]).id("True") == LabelTable(["False", "True"]).id(True) == 0 + 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, r"label 7 is not one of 2 known labels \(no, yes\)"),
        ("yess", r'label "yess" is not one of 2 known labels \(no, yes\); did you mean yes\?'),
        (-1, r"label -1 is negative; -1 marks rows without a label"),
        (-100, r"label -100 is negative"),
        (0.5, r"expected a label \(text, integer or true/false\), found 0.5 \(float\)"),
        (math.nan, r"the label is missing"),
        (None, r"the label is missing"),
        ("", r"the label is missing"),
        ([1], r"expected a label .*, found \[1\] \(list\)"),
        ("\ud800", r"expected a label .* \(str\)"),
    ],
)
def test_a_wrong_label_is_named_with_what_is_known(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelTable(["no", "yes"]).id(value)


def test_mixed_kinds_are_refused() -> None:
    with pytest.raises(DataError, match=r'expected labels of one kind, found true/false \(true\), text \("false"\)'):
        collect_names([True, "false"], 10)


def test_free_text_is_no_label() -> None:
    texts = [f"answer {number}" for number in range(60)]
    with pytest.raises(DataError, match=r'expected labels that repeat, found 60 different ones in 60 rows \(such as "answer 0"'):
        collect_names(texts, 60)


def test_label_names_are_each_given_once() -> None:
    with pytest.raises(DataError, match="expected at least one name, each once, found no twice"):
        LabelTable(["no", "yes", "no"])
    with pytest.raises(DataError, match="expected at least one name"):
        LabelTable([])


def test_labels_of_numpy_and_pandas() -> None:
    assert collect_names([np.int64(1), np.int64(0), 2], 9) == ("0", "1", "2")
    assert LabelTable(["no", "yes"]).id(np.int64(1)) == 1
    assert LabelTable(["false", "true"]).id(np.bool_(True)) == 1


def test_whole_floats_and_integers_have_one_name() -> None:
    assert label_name(3) == label_name(3.0) == label_name("3") == "3"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"positive": 200, "negative": 190, "positve": 1}, [("positve", "positive")]),
        ({"positive": 200, "Positive": 60}, [("Positive", "positive")]),
        ({"spam": 100, "spam ": 2, "ham": 300}, [("spam ", "spam")]),
        ({"true": 100, "ture": 1, "false": 90}, [("ture", "true")]),
        ({"positive": 200, "negative": 190}, []),
        ({"entailment": 60, "not_entailment": 40}, []),
        ({"very good": 50, "good": 60, "bad": 3}, []),
        ({"10": 200, "1": 1}, []),
        ({"B-PER": 500, "I-PER": 2, "B-PRE": 1, "O": 9000}, [("B-PRE", "B-PER")]),
        ({"a": 5, "b": 0}, []),
    ],
)
def test_a_rare_label_that_is_close_to_a_common_one_is_known(counts: dict[str, int], expected: list[tuple[str, str]]) -> None:
    assert lookalikes(counts) == expected
