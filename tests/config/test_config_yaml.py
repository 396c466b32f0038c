"""The YAML of recipes: plain data, YAML 1.2 scalars, no doubled keys."""

from pathlib import Path

import pytest

from modelzoo.config.yaml_file import parse_value, read_mapping
from modelzoo.errors import ConfigError

SCALARS = {
    "2e-5": 2e-5, "2E5": 2e5, "0.5": 0.5, ".5": 0.5, "3": 3, "-1": -1, "true": True, "null": None, "": None, "[a, 1]": ["a", 1],
    "no": "no", "off": "off", "1ep": "1ep", "007": "007", "12:30:45": "12:30:45", "2020-01-01": "2020-01-01", "a/b": "a/b",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_scalars_are_read_as_yaml_1_2(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def refusal(folder: Path, text: str) -> str:
    file = folder / "r.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_mapping(file)
    return str(caught.value)


def test_a_doubled_key_is_refused_with_both_lines(tmp_path: Path) -> None:
    message = refusal(tmp_path, "train:\n  epochs: 1\n  seed: 2\n  epochs: 3\n")
    assert "r.yaml:4: key train.epochs stands twice (first in line 2)" in message


def test_the_line_of_every_key_is_known(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("# a comment\na: 1\nb:\n  c: 2\n")
    assert read_mapping(file) == ({"a": 1, "b": {"c": 2}}, {("a",): 2, ("b",): 3, ("b", "c"): 4})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found nothing"),
        ("- a\n- b\n", "found a sequence"),
        ("a: [1\n", "not YAML"),
        ("a: 1\n\tb: 2\n", "r.yaml:2: not YAML"),
        ("a: !!python/object/apply:os.system [touch x]\n", "r.yaml:1: not plain data"),
        ("? [a]\n: 1\n", "expected a plain key"),
        ("a: " + "[" * 5000, "not YAML"),
        ("a: " + "{b: " * 40 + "1" + "}" * 40, "nested more than 20 deep"),
        ("a: " + "x" * 1_000_001, "too many for a recipe"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)
    assert not (tmp_path / "x").exists()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        read_mapping(file)
