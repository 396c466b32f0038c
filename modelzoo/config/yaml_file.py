"""Reading settings from YAML: plain data only, no key twice, and the line of each key for error messages."""

import re
from pathlib import Path
from typing import Any

import yaml

from modelzoo.errors import ConfigError

__all__ = ["KeyPath", "parse_value", "read_mapping"]

KeyPath = tuple[str, ...]
"""A dotted path, split: ("train", "batch_size")."""

_MAX_BYTES = 1_000_000  # a recipe is a page; more than this is another kind of file
_MAX_DEPTH = 20


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: 2e-5 is a number, and no, yes, on, off are texts."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """Return the value that `text` stands for in YAML: a number, true, null, a [list], a {mapping}, or the text itself.

    Raises:
        ConfigError: `text` opens a list, mapping or quote that it does not close.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{text!r} cannot be read as a value ({_first_line(error)}); put it in quotes") from None


def read_mapping(file: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Return the settings in a YAML file and the line (from 1) of every key in it.

    Args:
        file: An existing file.

    Raises:
        ConfigError: The file is not YAML, is not a mapping, or holds a key twice; the message names file and line.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as text ({error})") from None
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{file}: {len(text)} characters are too many for a recipe; at most {_MAX_BYTES} are read")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file}{_position(error)}: not YAML ({_first_line(error)})") from None
    if not isinstance(node, yaml.MappingNode):
        found = "nothing" if node is None else _kind(node)
        raise ConfigError(f"{file}: expected settings as `key: value` lines; found {found}")
    lines: dict[KeyPath, int] = {}
    _collect_lines(file, node, (), lines)
    try:
        return loader.construct_document(node), lines
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(f"{file}{_position(error)}: not plain data ({_first_line(error)})") from None


def _collect_lines(file: Path, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Note the line of every key below `node`; refuse doubled and non-text keys."""
    if len(path) > _MAX_DEPTH:
        raise ConfigError(f"{file}: nested more than {_MAX_DEPTH} deep at {'.'.join(path[:3])}...")
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{file}:{line}: expected a plain key; found {_kind(key_node)}")
        key = key_node.value
        if key in seen:
            full = ".".join((*path, key))
            raise ConfigError(f"{file}:{line}: key {full} stands twice (first in line {seen[key]}); remove one of them")
        seen[key] = line
        lines[(*path, key)] = line
        _collect_lines(file, value_node, (*path, key), lines)


def _kind(node: yaml.Node) -> str:
    """Return what a node is, in YAML's words: a scalar, a sequence, a mapping."""
    return f"a {type(node).__name__.removesuffix('Node').lower()}"


def _position(error: BaseException) -> str:
    """Return ":line" where the YAML parser knows it, else nothing."""
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def _first_line(error: BaseException) -> str:
    """Return what the YAML parser complains about, in one line."""
    problem = getattr(error, "problem", None)
    return str(problem or error or type(error).__name__).splitlines()[0]
