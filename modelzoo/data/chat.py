"""Chats as token ids, with exact marks of what the assistant says."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.data.chat_template import ChatTemplate, Message, read_chat_template
from modelzoo.data.columns import show
from modelzoo.data.named_templates import NAMED_TEMPLATES, NEEDED_TOKENS
from modelzoo.data.tokenizer import Tokenizer
from modelzoo.errors import DataError, closest

__all__ = ["ChatEncoder", "asked_text", "chat_template", "read_messages"]

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}


def chat_template(tokenizer: Tokenizer, name: str | None) -> ChatTemplate:
    """Return the chat template of a tokenizer, or a named one.

    Args:
        tokenizer: Of the model.
        name: One of NAMED_TEMPLATES; None for the tokenizer's own.

    Raises:
        DataError: If the tokenizer has none, is broken, or lacks a token that the named one needs.
    """
    tokens = tokenizer.special_texts
    if name is None:
        source = None if tokenizer.folder is None else read_chat_template(tokenizer.folder)
        if source is None:
            raise DataError(
                f"a chat needs a chat template, but the tokenizer has none; add data.template={'|'.join(NAMED_TEMPLATES)}"
            )
        return ChatTemplate(source, tokens, "the tokenizer's chat template")
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in NEEDED_TOKENS.get(name, ()) if token not in vocabulary]
    if "eos_token" not in tokens and name not in NEEDED_TOKENS:
        missing.append("eos_token")
    if missing:
        raise DataError(f"data.template={name} needs {', '.join(missing)}, which the tokenizer lacks; use another template")
    begin = "{{- bos_token }}\n" if tokenizer.begins_texts else ""
    return ChatTemplate(begin + NAMED_TEMPLATES[name], tokens, f"data.template={name}")


def asked_text(tokenizer: Tokenizer, text: str) -> str:
    """Return what a model reads when a user says a text, special tokens included, in the tokenizer's own template.

    Raises:
        DataError: The tokenizer has no template, or it refuses the text.
    """
    return chat_template(tokenizer, None).text([{"role": "user", "content": text}], asks=True)


def read_messages(value: Any, *, is_asked: bool = False) -> list[Message]:
    """Return a cell as messages.

    Args:
        value: A list of {"role", "content"}, or of {"from", "value"} as ShareGPT has them.
        is_asked: Whether an answer is to be written: then one at the end is left out.

    Raises:
        ValueError: If it is no such list, is empty, has a role that is not known, or does not end with the assistant.
    """
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f'expected messages like [{{"role": "user", "content": "..."}}, ...], found {show(value)}')
    messages = [_message(number, item) for number, item in enumerate(value, start=1)]
    last = messages[-1]["role"]
    if is_asked:
        messages = messages[:-1] if last == "assistant" else messages
    elif last != "assistant":
        raise ValueError(
            f"expected the last message from the assistant, found one from the {last}; nothing would be learned from it"
        )
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("expected a message from the user, found none")
    return messages


def _message(number: int, item: Any) -> Message:
    role, content = None, None
    if isinstance(item, Mapping):
        role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if role not in _ROLES:
        similar = closest(role, _ROLES) if isinstance(role, str) else []
        hint = f"; did you mean {similar[0]}?" if similar else ""
        raise ValueError(f"message {number}: expected a role of system, user, assistant, found {show(role)} in {show(item)}{hint}")
    if not isinstance(content, str):
        raise ValueError(f"message {number}: expected a text as content, found {show(content)}")
    if _ROLES[role] == "assistant" and not content.strip():
        raise ValueError(f"message {number}: the assistant's content is empty")
    return {"role": _ROLES[role], "content": content}


class ChatEncoder:
    """Turns chats into token ids.

    The template alone says which special tokens there are, so none is added, and a beginning is never there twice.

    Args:
        tokenizer: Of the model.
        template: Of its chats.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._end_ids = tokenizer.end_ids

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer: the one that the template puts there, and the tokenizer's own."""
        ids, answered = self.encode([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        last = ids[max(place for place, is_answer in enumerate(answered) if is_answer)]
        own = self._tokenizer.eos_id
        return (last,) if own in (None, last) else (last, own)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids after which the assistant's answer is written.

        Raises:
            DataError: If the template refuses the messages.
        """
        return self._ids([self._template.text(messages, asks=True)])[0]

    def encode(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Return the ids of a chat, and which of them the assistant says, the end of each answer included.

        Answers begin and end where tokens do: the ids before an answer are those of the text before it, which is what a model reads
        when it is to write the answer.

        Raises:
            DataError: If the template refuses the messages, or tokens of an answer are glued to its surroundings or have no end.
        """
        text, answers = self._template.text_and_answers(messages)
        edges = [edge for answer in answers for edge in answer]
        whole, *parts = self._ids([text, *(text[:edge] for edge in edges)])
        bos = self._tokenizer.bos_id
        if bos is not None and whole[:2] == [bos, bos]:
            raise DataError(f"{self._template.name} begins a text twice ({self._tokenizer.tokens([bos])[0]!r}); remove one of them")
        answered = [False] * len(whole)
        for number, (start, end) in enumerate(answers):
            first, last = len(parts[2 * number]), len(parts[2 * number + 1])
            if whole[:first] != parts[2 * number] or whole[:last] != parts[2 * number + 1]:
                raise DataError(
                    f"{self._template.name}: a token of the answer {show(text[start:end], 30)} is glued to the text around it; "
                    "remove white space at the answer's ends, or use another template"
                )
            for place in range(first, self._end(whole, first, last)):
                answered[place] = True
        return whole, answered

    def _end(self, ids: Sequence[int], first: int, last: int) -> int:
        """Return the place after an answer's last token, which is one that ends texts; what follows it would never be written."""
        ends = [place for place in range(first, last) if ids[place] in self._end_ids]
        if ends:
            return ends[-1] + 1
        if last < len(ids) and ids[last] in self._end_ids:
            return last + 1
        raise DataError(
            f"{self._template.name} ends an answer without a special token, so a model would never stop; add eos_token to the "
            "template, or use data.template"
        )

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.input_ids for encoding in self._tokenizer.encode_parts(texts)]
