"""Names of data sets: their forms, the offline switch and the way out without a hub."""

import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from modelzoo.data import read_rows
from modelzoo.data.hub_sets import dataset_name
from modelzoo.errors import DataError


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("super_glue/boolq", ("aps/super_glue", "boolq")),
        ("super_glue:boolq", ("aps/super_glue", "boolq")),
        ("aps/super_glue:boolq", ("aps/super_glue", "boolq")),
        ("boolq", ("aps/super_glue", "boolq")),
        ("glue/sst2", ("nyu-mll/glue", "sst2")),
        ("imdb", ("stanfordnlp/imdb", None)),
        ("someone/set", ("someone/set", None)),
        ("someone/set:part", ("someone/set", "part")),
        ("own_set", ("own_set", None)),
    ],
)
def test_forms_of_names(source: str, expected: tuple[str, str | None]) -> None:
    assert dataset_name(source) == expected


@pytest.mark.parametrize("source", ["a/b/c", "", "two words", "a/b c"])
def test_other_forms_are_refused(source: str) -> None:
    with pytest.raises(DataError, match=r"expected name, owner/name or owner/name:config"):
        dataset_name(source)


def test_rows_come_with_label_names(monkeypatch: pytest.MonkeyPatch) -> None:
    features = datasets.Features(
        {
            "question": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["False", "True"]),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B"])),
        }
    )
    content = {"question": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}
    asked = []

    def load(name: str, config: str | None, *, split: str, revision: str | None) -> datasets.Dataset:
        asked.append((name, config, split, revision))
        return datasets.Dataset.from_dict(content, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = read_rows("super_glue/boolq", split="train", revision="abc")
    assert asked == [("aps/super_glue", "boolq", "train", "abc")]
    assert [row["label"] for row in rows] == ["True", "False", None]
    assert [row["tags"] for row in rows] == [["O", "B"], [], ["B"]]
    assert len(read_rows("boolq", split="train", max_rows=2)) == 2


def test_a_name_needs_a_split() -> None:
    with pytest.raises(DataError, match=r"boolq: expected a split \(train, validation or test\) beside a data set's name"):
        read_rows("boolq")


def test_an_unreachable_hub_says_which_keys_take_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError) as caught:
        read_rows("super_glu/boolq", split="train")
    message = str(caught.value)
    assert "data set 'super_glu/boolq': expected split train of super_glu/boolq" in message
    assert "found ConnectionError: Couldn't reach it. did you mean super_glue?" in message
    assert "data.train=FILE data.validation=FILE" in message


def test_offline_opens_no_socket(tmp_path: Path) -> None:
    code = """if True:
        import socket
        def refuse(*args, **kwargs):
            raise SystemExit("a socket was opened")
        socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
        from modelzoo.data import read_rows
        from modelzoo.errors import DataError
        try:
            read_rows("super_glue/boolq", split="train")
        except DataError as error:
            assert "data.train=FILE" in str(error), error
        else:
            raise SystemExit("read from a cache that should be empty")
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
