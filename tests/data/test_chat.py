"""Chats become the ids that transformers makes of them, with exact marks of the assistant's answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import byte_level_folder
from transformers import AutoTokenizer

from modelzoo.data import Tokenizer, load_tokenizer
from modelzoo.data.chat import ChatEncoder, chat_template, read_messages
from modelzoo.data.chat_template import ChatTemplate, Message, read_chat_template
from modelzoo.data.named_templates import NAMED_TEMPLATES
from modelzoo.errors import DataError

CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "sat on the mat"},
    {"role": "user", "content": "and <then>?"},
    {"role": "assistant", "content": "it ran"},
]
# As Qwen2's: no {% generation %}, a turn ends with a token and a line break.
UNMARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for message in messages %}\n  {% if message.role == 'assistant' %}\n"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}\n"
    "  {% else %}\n[{{ message.role | upper }}: {{ message | tojson }}]\n  {% endif %}\n{% endfor %}"
)
TEMPLATES = {"unmarked": UNMARKED, "marked": MARKED, **NAMED_TEMPLATES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ["<|im_start|>", "<|im_end|>"]
    made = byte_level_folder(tmp_path_factory.mktemp("chat"), model_type="gpt2")
    ids = len(json.loads((made / "vocab.json").read_text()))
    added = {str(ids + number): {"content": name, "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False} for number, name in enumerate(names)}  # fmt: skip # noqa: E501
    config = {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": added}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("asks", [False, True])
def test_texts_and_ids_are_those_of_transformers(name: str, asks: bool, tokenizer: Tokenizer, reference: Any) -> None:
    source = TEMPLATES[name]
    template = ChatTemplate(source, tokenizer.special_texts, name)
    messages = CHAT[:-1] if asks else CHAT
    options = {"chat_template": source, "add_generation_prompt": asks}
    assert template.text(messages, asks=asks) == reference.apply_chat_template(messages, tokenize=False, **options)
    expected = reference.apply_chat_template(messages, return_dict=True, **options)["input_ids"]
    encoder = ChatEncoder(tokenizer, template)
    assert (encoder.prompt(messages) if asks else encoder.encode(messages)[0]) == expected


@pytest.mark.parametrize("name", ["marked", *NAMED_TEMPLATES])
def test_marks_are_those_of_transformers(name: str, tokenizer: Tokenizer, reference: Any) -> None:
    template = ChatTemplate(TEMPLATES[name], tokenizer.special_texts, name)
    expected = reference.apply_chat_template(
        CHAT, chat_template=TEMPLATES[name], return_dict=True, return_assistant_tokens_mask=True
    )
    ids, answered = ChatEncoder(tokenizer, template).encode(CHAT)
    assert ids == expected["input_ids"]
    assert answered == [bool(mark) for mark in expected["assistant_masks"]]


@pytest.mark.parametrize("name", TEMPLATES)
def test_answers_and_their_ends_are_marked_and_nothing_else(name: str, tokenizer: Tokenizer) -> None:
    encoder = ChatEncoder(tokenizer, ChatTemplate(TEMPLATES[name], tokenizer.special_texts, name))
    ids, answered = encoder.encode(CHAT)
    end = "<|endoftext|>" if name in ("marked", "alpaca", "plain") else "<|im_end|>"
    space = " " if name == "plain" else ""
    said = tokenizer.decode([token for token, mark in zip(ids, answered, strict=True) if mark], skip_special_tokens=False)
    assert said == f"{space}sat on the mat{end}{space}it ran{end}"
    assert encoder.end_ids[0] == tokenizer.get_vocab()[end]
    assert tokenizer.eos_id in encoder.end_ids


def test_the_prompt_is_what_stands_before_the_answer(tokenizer: Tokenizer) -> None:
    for name in ("unmarked", *NAMED_TEMPLATES):
        encoder = ChatEncoder(tokenizer, ChatTemplate(TEMPLATES[name], tokenizer.special_texts, name))
        ids, answered = encoder.encode(CHAT)
        last = len(answered) - 1 - answered[::-1].index(True)
        first = max(place for place in range(last) if not answered[place]) + 1
        assert encoder.prompt(CHAT[:-1]) == ids[:first]


@pytest.mark.parametrize(
    ("source", "messages", "message"),
    [
        ("{% for message in messages %}{{ loop.nope() }}{% endfor %}", CHAT, "own: 'jinja2.runtime.LoopContext object' has no"),
        ("{{ raise_exception('no system, please') }}", CHAT, "own: no system, please"),
        ("{{ messages.append(1) }}", CHAT, "own: .*append.* is not safely callable|own: access to attribute 'append'"),
        ("{{ ''.__class__.__mro__ }}", CHAT, "own: access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages[0].content }}{% for message in messages[-1:] %}{{ message.content }}{% endfor %}", CHAT, "rewrites earlier"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", CHAT[3:], "own ends an answer without a special token, so a model"),
        (
            "{% for m in messages %}{{ m.content }}{% generation %}{{ ' ' + eos_token }}{% endgeneration %}{% endfor %}",
            [{"role": "user", "content": "the cat "}, {"role": "assistant", "content": "sat"}],
            None,
        ),
        ("{{ bos_token + bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}", CHAT, "begins a text twice"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}{{ m.content + eos_token }}"
            "{% endgeneration %}{% endif %}{% endfor %}",
            [{"role": "user", "content": "the c"}, {"role": "assistant", "content": "at"}],
            'own: a token of the answer "at<.*" is glued to the text around it',
        ),
    ],
)
def test_a_template_that_fails_says_why(source: str, messages: list[Message], message: str | None, tokenizer: Tokenizer) -> None:
    encoder = ChatEncoder(tokenizer, ChatTemplate(source, tokenizer.special_texts, "own"))
    if message is None:
        encoder.encode(messages)
        return
    with pytest.raises(DataError, match=message):
        encoder.encode(messages)


def test_no_jinja_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="own: expected a chat template, found: "):
        ChatTemplate("{% for %}", {}, "own")
    with pytest.raises(DataError, match=r"a chat needs a chat template, but the tokenizer has none; add data.template=alpaca"):
        chat_template(tokenizer, None)


def test_the_date_is_the_same_on_every_day() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, "own")
    assert template.text(CHAT) == "26 Jul 2024"


def test_templates_are_read_from_either_file(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert read_chat_template(tmp_path) == "usual"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "one"}))
    assert read_chat_template(tmp_path) == "one"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_chat_template(tmp_path) == "file"


def test_a_named_template_needs_its_tokens(tmp_path: Path) -> None:
    bare = load_tokenizer(byte_level_folder(tmp_path, model_type="gpt2"))
    with pytest.raises(DataError, match=r"data.template=chatml needs <\|im_start\|>, <\|im_end\|>, which the tokenizer lacks"):
        chat_template(bare, "chatml")
    assert chat_template(bare, "plain").marks_answers


def test_both_forms_of_messages_are_read() -> None:
    shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    expected = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert read_messages(shared) == read_messages(expected) == expected
    assert read_messages(shared, is_asked=True) == read_messages(shared[:1], is_asked=True) == expected[:1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"expected messages like .*, found \[\]"),
        (None, "expected messages like .*, found null"),
        ("hello", 'expected messages like .*, found "hello"'),
        ([{"role": "usr", "content": "a"}], 'message 1: expected a role of .*, found "usr" in .*; did you mean user?'),
        ([{"content": "a"}], "message 1: expected a role of system, user, assistant, found null"),
        ([{"role": "user", "content": "a"}], "expected the last message from the assistant, found one from the user"),
        ([{"role": "user", "content": ["a"]}], r'message 1: expected a text as content, found \["a"\]'),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}], "message 2: the assistant's content is empty"),
        ([{"role": "assistant", "content": "a"}], "expected a message from the user, found none"),
    ],
)
def test_wrong_messages_are_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_messages(value)
