"""Each data set of SuperGLUE becomes the rows that are written down here, from either form; bad rows are named."""

import copy
from typing import Any

import pytest
from published_examples import HUB, OFFICIAL

from modelzoo.config.schema import DataForm
from modelzoo.data.published import PUBLISHED, published_rows
from modelzoo.errors import DataError

Row = dict[str, Any]
_TALE = "Sentence 1: Tom ran. Sentence 2: Kim sat. "
_ASKED = (
    (_TALE, "Who ran?", "Tom", 1, "4.7"),
    (_TALE, "Who ran?", "Kim", 0, "4.7"),
    (_TALE, "Who sat?", "Kim", 1, "4.8"),
    ("Al hid.", "Who hid?", "Jo", 0, "5.9"),
)
_PASSAGE = "Ann Lee met Bo. Bo sang in Rome. Ann left"
_SONGS = [f"The song of {name} was heard" for name in ("Ann Lee", "Bo", "Rome")]
_TRAINS = [f"Trains go to {name}" for name in ("Ann Lee", "Bo", "Rome")]

ENCODERS: dict[str, list[Row]] = {
    "boolq": [
        {"text_a": "is snow cold", "text_b": "Snow -- Snow is frozen water.", "label": "true"},
        {"text_a": "can fish sing", "text_b": "Fish -- Most fish are silent.", "label": "false"},
    ],
    "cb": [
        {"text_a": "I doubt it. Did she go?", "text_b": "she went", "label": "neutral"},
        {"text_a": "He knows that it rains.", "text_b": "it rains", "label": "entailment"},
    ],
    "copa": [
        {"prompt": "The cup fell. What happened as a result?", "choices": ["It broke.", "It sang."], "label": 0},
        {"prompt": "I was wet. What was the cause of this?", "choices": ["I ate.", "It rained."], "label": 1},
    ],
    "multirc": [
        {"text_a": _TALE, "text_b": "Who ran? Tom", "label": "true", "question_group": "4.7"},
        {"text_a": _TALE, "text_b": "Who ran? Kim", "label": "false", "question_group": "4.7"},
        {"text_a": _TALE, "text_b": "Who sat? Kim", "label": "true", "question_group": "4.8"},
        {"text_a": "Al hid.", "text_b": "Who hid? Jo", "label": "false", "question_group": "5.9"},
    ],
    "record": [
        {"prompt": _PASSAGE, "choices": _SONGS, "label": 1, "names": ["Ann Lee", "Bo", "Rome"], "answers": ["Bo"]},
        {"prompt": _PASSAGE, "choices": _TRAINS, "label": 2, "names": ["Ann Lee", "Bo", "Rome"], "answers": ["Rome"]},
        {"prompt": "Cy won.", "choices": ["Cy is glad"], "label": 0, "names": ["Cy"], "answers": ["Cy"]},
    ],
    "rte": [
        {"text_a": "Ida sings.", "text_b": "Ida is mute.", "label": "not_entailment"},
        {"text_a": "Rex is a dog.", "text_b": "Rex is an animal.", "label": "entailment"},
    ],
    "wic": [
        {"text_a": "The *bank* is wet.", "text_b": "A *bank* lends.", "label": "false"},
        {"text_a": "They *ran* home.", "text_b": "*Run*!", "label": "true"},
    ],
    "wsc": [
        {"text_a": "Max thanked * Eve * because # she # had helped.", "label": "true"},
        {"text_a": "The old cup held * tea * until # it # cracked.", "label": "false"},
    ],
}
_NO_YES = [" no", " yes"]
_MATCH = "Question: In the passage above, does the pronoun"
_SAME = "used in the same sense in both sentences?\nAnswer:"
DECODERS: dict[str, list[Row]] = {
    "boolq": [
        {"prompt": "Snow -- Snow is frozen water.\nQuestion: is snow cold?\nAnswer:", "choices": _NO_YES, "label": 1},
        {"prompt": "Fish -- Most fish are silent.\nQuestion: can fish sing?\nAnswer:", "choices": _NO_YES, "label": 0},
    ],
    "cb": [
        {
            "prompt": "I doubt it. Did she go?\nQuestion: she went. True, False, or Neither?\nAnswer:",
            "choices": [" True", " False", " Neither"],
            "label": 2,
        },
        {
            "prompt": "He knows that it rains.\nQuestion: it rains. True, False, or Neither?\nAnswer:",
            "choices": [" True", " False", " Neither"],
            "label": 0,
        },
    ],
    "copa": [
        {"prompt": "The cup fell so", "choices": [" it broke.", " it sang."], "label": 0},
        {"prompt": "I was wet because", "choices": [" I ate.", " it rained."], "label": 1},
    ],
    "multirc": [
        {
            "prompt": f"{text}\nQuestion: {question}\nAnswer: {answer}\nIs this answer correct?",
            "choices": _NO_YES,
            "label": label,
            "question_group": group,
        }
        for text, question, answer, label, group in _ASKED
    ],
    "record": [{**row, "prompt": f"{row['prompt']}\n"} for row in ENCODERS["record"]],
    "rte": [
        {"prompt": "Ida sings.\nQuestion: Ida is mute. True or False?\nAnswer:", "choices": [" True", " False"], "label": 1},
        {
            "prompt": "Rex is a dog.\nQuestion: Rex is an animal. True or False?\nAnswer:",
            "choices": [" True", " False"],
            "label": 0,
        },
    ],
    "wic": [
        {"prompt": f"The bank is wet.\nA bank lends.\nQuestion: Is the word 'bank' {_SAME}", "choices": _NO_YES, "label": 0},
        {"prompt": f"They ran home.\nRun!\nQuestion: Is the word 'run' {_SAME}", "choices": _NO_YES, "label": 1},
    ],
    "wsc": [
        {
            "prompt": f'Passage: Max thanked * Eve * because # she # had helped.\n{_MATCH} "she" refer to "Eve"?\nAnswer:',
            "choices": _NO_YES,
            "label": 1,
        },
        {
            "prompt": f'Passage: The old cup held * tea * until # it # cracked.\n{_MATCH} "it" refer to "tea"?\nAnswer:',
            "choices": _NO_YES,
            "label": 0,
        },
    ],
}
_FALSE_TRUE = ["False", "True"]
_PAIR = "copa choice1: {} choice2: {} premise: {} question: {}"
BOTH: dict[str, list[Row]] = {
    "boolq": [
        {"source": "boolq passage: Snow -- Snow is frozen water. question: is snow cold", "choices": _FALSE_TRUE, "label": 1},
        {"source": "boolq passage: Fish -- Most fish are silent. question: can fish sing", "choices": _FALSE_TRUE, "label": 0},
    ],
    "cb": [
        {
            "source": "cb hypothesis: she went premise: I doubt it. Did she go?",
            "choices": ["entailment", "contradiction", "neutral"],
            "label": 2,
        },
        {
            "source": "cb hypothesis: it rains premise: He knows that it rains.",
            "choices": ["entailment", "contradiction", "neutral"],
            "label": 0,
        },
    ],
    "copa": [
        {"source": _PAIR.format("It broke.", "It sang.", "The cup fell.", "effect"), "choices": ["choice1", "choice2"], "label": 0},
        {"source": _PAIR.format("I ate.", "It rained.", "I was wet.", "cause"), "choices": ["choice1", "choice2"], "label": 1},
    ],
    "multirc": [
        {
            "source": f"multirc question: {question} answer: {answer} paragraph: {text}",
            "choices": _FALSE_TRUE,
            "label": label,
            "question_group": group,
        }
        for text, question, answer, label, group in _ASKED
    ],
    "record": [
        {
            "source": f"record query: {query} entities: {', '.join(names)} passage: {passage}",
            "choices": names,
            "label": label,
            "names": names,
            "answers": [names[label]],
        }
        for query, names, passage, label in (
            ("The song of @placeholder was heard", ["Ann Lee", "Bo", "Rome"], _PASSAGE, 1),
            ("Trains go to @placeholder", ["Ann Lee", "Bo", "Rome"], _PASSAGE, 2),
            ("@placeholder is glad", ["Cy"], "Cy won.", 0),
        )
    ],
    "rte": [
        {"source": "rte hypothesis: Ida is mute. premise: Ida sings.", "choices": ["entailment", "not_entailment"], "label": 1},
        {
            "source": "rte hypothesis: Rex is an animal. premise: Rex is a dog.",
            "choices": ["entailment", "not_entailment"],
            "label": 0,
        },
    ],
    "wic": [
        {"source": "wic sentence1: The bank is wet. sentence2: A bank lends. word: bank", "choices": _FALSE_TRUE, "label": 0},
        {"source": "wic sentence1: They ran home. sentence2: Run! word: run", "choices": _FALSE_TRUE, "label": 1},
    ],
    "wsc": [
        {"source": "wsc text: Max thanked * Eve * because # she # had helped.", "choices": _FALSE_TRUE, "label": 1},
        {"source": "wsc text: The old cup held * tea * until # it # cracked.", "choices": _FALSE_TRUE, "label": 0},
    ],
}


def own_task(name: str) -> str:
    return "multiple_choice" if name in ("copa", "record") else "classification"


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("rows", [OFFICIAL, HUB], ids=["official", "hub"])
def test_rows_are_what_is_written_down(rows: dict[str, list[Row]], name: str) -> None:
    form = f"superglue/{name}"
    assert published_rows(rows[name], form, own_task(name)) == ENCODERS[name]
    assert published_rows(rows[name], form, "causal_lm") == DECODERS[name]
    assert published_rows(rows[name], form, "seq2seq_lm") == BOTH[name]


def test_every_data_set_is_a_value_of_the_setting_and_has_rows_here() -> None:
    assert set(PUBLISHED) == set(DataForm.__args__) == {"lcqmc", *(f"superglue/{name}" for name in OFFICIAL)}  # type: ignore[attr-defined]  # a Literal's


@pytest.mark.parametrize("names", [("sentence1", "sentence2"), ("text_a", "text_b")])
def test_rows_of_lcqmc_are_asked_in_chinese(names: tuple[str, str]) -> None:
    rows = [{names[0]: "天晴吗", names[1]: "今天晴吗", "label": "1"}, {names[0]: "吃饭", names[1]: "睡觉", "label": 0}]
    wanted = [("“天晴吗”与“今天晴吗”的意思", 1), ("“吃饭”与“睡觉”的意思", 0)]
    for task, role in (("causal_lm", "prompt"), ("seq2seq_lm", "source")):
        made = [{role: text, "choices": ["不同", "相同"], "label": label} for text, label in wanted]
        assert published_rows(rows, "lcqmc", task) == made
    made = published_rows(rows, "lcqmc", "classification")
    assert made == [{"text_a": "天晴吗", "text_b": "今天晴吗", "label": "1"}, {"text_a": "吃饭", "text_b": "睡觉", "label": "0"}]


@pytest.mark.parametrize("name", OFFICIAL)
def test_rows_without_labels_are_read_for_prediction(name: str) -> None:
    rows = copy.deepcopy(OFFICIAL[name])
    for row in rows:
        row.pop("label", None)
        for query in row.get("qas", []):
            query.pop("answers")
        for question in row.get("passage", {}).get("questions", []) if name == "multirc" else []:
            for answer in question["answers"]:
                answer.pop("label")
    assert {row["label"] for row in published_rows(rows, f"superglue/{name}", own_task(name))} == {None}


def test_an_answer_of_multirc_may_be_empty() -> None:
    """One question has such an answer in BIG-bench's copy of MultiRC ("Who would not let her return the toys?")."""
    official, hub = copy.deepcopy(OFFICIAL["multirc"][:1]), copy.deepcopy(HUB["multirc"][1:2])
    official[0]["passage"]["questions"][0]["answers"][1]["text"] = ""
    hub[0]["answer"] = ""
    for row in (
        published_rows(official, "superglue/multirc", "classification")[1],
        *published_rows(hub, "superglue/multirc", "classification"),
    ):
        assert (row["text_b"], row["label"]) == ("Who ran? ", "false")


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("boolq", {"passage": None}, "expected a text in column 'passage', found nothing"),
        ("boolq", {"label": "maybe"}, "expected false or true in column 'label', found \"maybe\""),
        ("cb", {"label": 3}, "expected entailment or contradiction or neutral in column 'label', found 3"),
        ("rte", {"hypothesis": " "}, "expected a text in column 'hypothesis', found \" \""),
        ("copa", {"question": "why"}, "expected cause or effect in column 'question', found \"why\""),
        ("copa", {"choice2": 7}, "expected a text in column 'choice2', found 7"),
        ("wic", {"end1": 99}, "expected 0 <= start1 < end1 <= 14, the characters of column 'sentence1', found 5 and 99"),
        (
            "wsc",
            {"target": {"span1_text": "tea"}},
            "expected the number of a word in column 'target.span1_index', 0 to 7, found null",
        ),
        (
            "wsc",
            {"target": {"span1_text": "ink", "span1_index": 4, "span2_text": "it", "span2_index": 6}},
            "expected the span \"ink\" in column 'text'",
        ),
        ("multirc", {"passage": {"text": "x"}}, "expected a list of objects in column 'passage.questions', found null"),
        ("multirc", {"passage": "x"}, "expected a text in column 'paragraph', found nothing"),
        (
            "multirc",
            {"passage": {"text": "x", "questions": [{"question": "who?", "answers": [{"label": 1}]}]}},
            "expected a text in column 'passage.questions.answers.text', found nothing",
        ),
        (
            "record",
            {"passage": {"text": "Cy", "entities": [{"start": 0, "end": 2}]}},
            "expected start and end in column 'passage.entities', 0 to 1",
        ),
        ("record", {"qas": [{"query": "no gap"}]}, "expected @placeholder in column 'query', found \"no gap\""),
        (
            "record",
            {"qas": [{"query": "@placeholder", "answers": [{"text": "Di"}]}]},
            "expected an answer of column 'answers' among the entities, found [\"Di\"]",
        ),
    ],
)
def test_a_bad_row_is_refused_by_row_and_column(name: str, changes: Row, problem: str) -> None:
    rows = copy.deepcopy(OFFICIAL[name])
    rows[1] |= changes
    with pytest.raises(DataError) as caught:
        published_rows(rows, f"superglue/{name}", own_task(name), source="train.jsonl")
    assert str(caught.value).startswith(f"train.jsonl: row 2: {problem}")
    assert f"give rows as superglue/{name} has them" in str(caught.value)


def test_all_bad_rows_are_listed_at_once() -> None:
    rows = [{**row, "label": "perhaps"} for row in OFFICIAL["boolq"]]
    with pytest.raises(DataError, match=r"2 rows have a problem(.|\n)*row 1: (.|\n)*row 2: "):
        published_rows(rows, "superglue/boolq", "causal_lm")


def test_a_task_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"is for model\.task=multiple_choice, causal_lm or seq2seq_lm"):
        published_rows(OFFICIAL["copa"], "superglue/copa", "classification")


def test_a_span_is_found_where_its_number_is_off_and_over_a_line_break() -> None:
    row = {"text": "It said big\nred cars win .", "label": True}
    spans = {"span1_text": "big red cars", "span1_index": 0, "span2_text": "it", "span2_index": 5}
    made = published_rows([{**row, "target": spans}], "superglue/wsc", "classification")
    assert made[0]["text_a"] == "# It # said * big\nred cars * win ."
