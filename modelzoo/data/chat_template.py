"""Chat templates: from messages to the one text that a model was taught on, and where in it the assistant speaks.

Templates are Jinja programs that came with a model, so they run as transformers runs them: in an immutable sandbox, with the same
filters, functions and tags, and on plain copies of the messages. The one difference is the clock: `strftime_now` tells a fixed
date, or the tokens of a data set would change from day to day.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from modelzoo.data.special_tokens import read_json_object
from modelzoo.errors import DataError

__all__ = ["ChatTemplate", "Message", "read_chat_template"]

Message = dict[str, str]
"""A role (system, user, assistant) and its content."""

_DATE = datetime.date(2024, 7, 26)  # which Llama 3's own templates fall back on
_FILE = "chat_template.jinja"
_MOST_BYTES = 1 << 20


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text in the form of transformers' chat templates.
        tokens: Texts of the special tokens by their names, as bos_token.
        name: What it is called in errors.

    Raises:
        DataError: If it is no Jinja.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], name: str) -> None:
        self.source = source
        self.name = name
        self._tokens = dict(tokens)
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            self._marks = cast(_Generation, environment.extensions[_Generation.identifier])
        except jinja2.TemplateError as error:
            raise DataError(f"{name}: expected a chat template, found: {error}") from error
        calls = tree.find_all(jinja2.nodes.CallBlock)
        self.marks_answers = any(_is_mark(call) for call in calls)
        """Whether it says where the assistant speaks ({% generation %})."""

    def text(self, messages: Sequence[Message], *, asks: bool = False) -> str:
        """Return the text of some messages.

        Args:
            messages: From the first on.
            asks: Whether the beginning of an answer follows, as for a model that is to write it.

        Raises:
            DataError: If the template refuses them or fails.
        """
        return self._render(messages, asks)[0]

    def text_and_answers(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of messages and the characters [start, end) of each assistant's turn.

        Without {% generation %}, a turn is what the template adds for it to the messages before it with the beginning of an answer;
        that needs a template which only adds to the text as messages are added.

        Raises:
            DataError: If the template refuses the messages, fails, or rewrites earlier turns.
        """
        text, marked = self._render(messages, asks=False)
        if self.marks_answers:
            return text, marked
        answers = []
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = self.text(messages[:turn], asks=True), self.text(messages[: turn + 1])
            if not (text.startswith(before) and text.startswith(after) and len(before) < len(after)):
                raise DataError(
                    f"{self.name} rewrites earlier text once message {turn + 1} of {len(messages)} is there, so the answer cannot "
                    "be told from the rest; use a template with {% generation %} marks, or data.template"
                )
            answers.append((len(before), len(after)))
        return text, answers

    def _render(self, messages: Sequence[Message], asks: bool) -> tuple[str, list[tuple[int, int]]]:
        blocks: list[str] = []
        answers: list[tuple[int, int]] = []

        def mark(content: str) -> None:
            start = sum(map(len, blocks))
            answers.append((start, start + len(content)))

        values = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": asks,
            "tools": None,
            "documents": None,
        }
        self._marks.listeners.append(mark)
        try:
            for block in self._template.generate(**values, **self._tokens):
                blocks.append(block)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise DataError(f"{self.name}: {error}") from error
        finally:
            self._marks.listeners.pop()
        return "".join(blocks), answers


def read_chat_template(folder: Path) -> str | None:
    """Return the chat template of a tokenizer's folder, or None.

    As in transformers, chat_template.jinja goes before the entry of tokenizer_config.json, of whose several templates the one
    called "default" is taken.

    Raises:
        DataError: If a file is broken, or larger than 1 MiB.
    """
    file = folder / _FILE
    if file.is_file():
        if file.stat().st_size > _MOST_BYTES:
            raise DataError(f"{file}: expected at most 1 MiB, found {file.stat().st_size:,} bytes")
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{file}: expected UTF-8, found byte {error.object[error.start]:#04x} at {error.start}") from error
    found = read_json_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    return found if isinstance(found, str) and found.strip() else None


class _Generation(jinja2.ext.Extension):
    """The tag {% generation %}, around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 - so it is declared in jinja2

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.listeners: list[Callable[[str], None]] = []  # of the rendering that is going on

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        content = caller()
        self.listeners[-1](content)
        return content


def _is_mark(call: jinja2.nodes.CallBlock) -> bool:
    function = getattr(call.call, "node", None)
    return isinstance(function, jinja2.nodes.ExtensionAttribute) and function.name == "_marked"


class _Dict:
    """`dict` without its attributes, which lead out of a sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, which takes no names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a name in a namespace may not begin with an underscore, found {name!r}")


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the environment that transformers renders chat templates in."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _DATE.strftime,
        "dict": _Dict(),
        "namespace": cast(Any, _Namespace),
    }
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON without Jinja's escapes of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
