"""Two rows of each data set of SuperGLUE in the official release's form, written for these tests, and the same in the hub's."""

import copy
from typing import Any

__all__ = ["HUB", "OFFICIAL"]

Row = dict[str, Any]

_PASSAGE = "Ann Lee met Bo.\n@highlight\nBo sang in Rome\n@highlight\nAnn left"
_TALE = "<b>Sentence 1: </b>Tom ran.<br><b>Sentence 2: </b>Kim sat.<br>"

OFFICIAL: dict[str, list[Row]] = {
    "boolq": [
        {"question": "is snow cold", "passage": "Snow -- Snow is frozen water.", "idx": 0, "label": True},
        {"question": "can fish sing", "passage": "Fish -- Most fish are silent.", "idx": 1, "label": False},
    ],
    "cb": [
        {"premise": "I doubt it. Did she go?", "hypothesis": "she went", "label": "neutral", "idx": 0},
        {"premise": "He knows that it rains.", "hypothesis": "it rains", "label": "entailment", "idx": 1},
    ],
    "copa": [
        {"premise": "The cup fell.", "choice1": "It broke.", "choice2": "It sang.", "question": "effect", "label": 0, "idx": 0},
        {"premise": "I was wet.", "choice1": "I ate.", "choice2": "It rained.", "question": "cause", "label": 1, "idx": 1},
    ],
    "multirc": [
        {
            "idx": 4,
            "version": 1.1,
            "passage": {
                "text": _TALE,
                "questions": [
                    {
                        "question": "Who ran?",
                        "idx": 7,
                        "answers": [{"text": "Tom", "idx": 0, "label": 1}, {"text": "Kim", "idx": 1, "label": 0}],
                    },
                    {"question": "Who sat?", "idx": 8, "answers": [{"text": "Kim", "idx": 2, "label": 1}]},
                ],
            },
        },
        {
            "idx": 5,
            "version": 1.1,
            "passage": {
                "text": "Al hid.",
                "questions": [{"question": "Who hid?", "idx": 9, "answers": [{"text": "Jo", "idx": 3, "label": 0}]}],
            },
        },
    ],
    "record": [
        {
            "source": "made here",
            "idx": 0,
            "passage": {
                "text": _PASSAGE,
                "entities": [{"start": 0, "end": 6}, {"start": 12, "end": 13}, {"start": 27, "end": 28}, {"start": 38, "end": 41}],
            },
            "qas": [
                {
                    "idx": 0,
                    "query": "The song of @placeholder was heard",
                    "answers": [{"start": 12, "end": 13, "text": "Bo"}, {"start": 27, "end": 28, "text": "Bo"}],
                },
                {"idx": 1, "query": "Trains go to @placeholder", "answers": [{"start": 38, "end": 41, "text": "Rome"}]},
            ],
        },
        {
            "source": "made here",
            "idx": 1,
            "passage": {"text": "Cy won.", "entities": [{"start": 0, "end": 1}]},
            "qas": [{"idx": 2, "query": "@placeholder is glad", "answers": [{"start": 0, "end": 1, "text": "Cy"}]}],
        },
    ],
    "rte": [
        {"premise": "Ida sings.", "hypothesis": "Ida is mute.", "label": "not_entailment", "idx": 0},
        {"premise": "Rex is a dog.", "hypothesis": "Rex is an animal.", "label": "entailment", "idx": 1},
    ],
    "wic": [
        {
            "word": "bank",
            "sentence1": "The bank is wet.",
            "sentence2": "A bank lends.",
            "idx": 0,
            "label": False,
            "start1": 4,
            "start2": 2,
            "end1": 8,
            "end2": 6,
        },
        {
            "word": "run",
            "sentence1": "They ran home.",
            "sentence2": "Run!",
            "idx": 1,
            "label": True,
            "start1": 5,
            "start2": 0,
            "end1": 8,
            "end2": 3,
        },
    ],
    "wsc": [
        {
            "text": "Max thanked Eve because she had helped.",
            "target": {"span1_index": 2, "span1_text": "Eve", "span2_index": 4, "span2_text": "she"},
            "idx": 0,
            "label": True,
        },
        {
            "text": "The old cup held tea until it cracked.",
            "target": {"span1_index": 4, "span1_text": "tea", "span2_index": 6, "span2_text": "it"},
            "idx": 1,
            "label": False,
        },
    ],
}


def _as_on_the_hub(name: str) -> list[Row]:
    rows = copy.deepcopy(OFFICIAL[name])
    if name == "multirc":
        return [
            {
                "paragraph": row["passage"]["text"],
                "question": question["question"],
                "answer": answer["text"],
                "idx": {"paragraph": row["idx"], "question": question["idx"], "answer": answer["idx"]},
                "label": ("False", "True")[answer["label"]],
            }
            for row in rows
            for question in row["passage"]["questions"]
            for answer in question["answers"]
        ]
    if name == "record":
        return [
            {
                "passage": row["passage"]["text"],
                "query": query["query"],
                "entities": list({row["passage"]["text"][e["start"] : e["end"] + 1]: 0 for e in row["passage"]["entities"]}),
                "answers": list({answer["text"]: 0 for answer in query["answers"]}),
                "idx": {"passage": row["idx"], "query": query["idx"]},
            }
            for row in rows
            for query in row["qas"]
        ]
    for row in rows:
        if name == "wsc":
            row |= row.pop("target")
        if name == "copa":
            row["label"] = f"choice{row['label'] + 1}"
        elif isinstance(row["label"], bool):
            row["label"] = str(row["label"])
    return rows


HUB: dict[str, list[Row]] = {name: _as_on_the_hub(name) for name in OFFICIAL}
