"""Chat messages in OpenAI's many spellings become the plain ones that templates expect."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from chairlift.errors import InvalidParameterError, UnsupportedParameterError
from chairlift.tokenizer.messages import normalize_messages


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi", "Hi"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "H"}, "i", {"type": "refusal", "refusal": "!"}], "Hi!"),
        (({"type": "input_text", "text": "Hi"},), "Hi"),
    ],
)
def test_content_becomes_a_text(content: Any, text: str) -> None:
    """Parts are joined and null is empty, so that a template always meets a text."""
    assert normalize_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": text}]


def test_missing_content_is_empty_and_other_fields_stay() -> None:
    """An assistant's call of a tool has no content; its arguments become the object that templates want."""
    call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    (message,) = normalize_messages([{"role": "assistant", "tool_calls": [call], "name": "x"}])
    assert message["content"] == ""
    assert message["name"] == "x"
    assert message["tool_calls"] == [{"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert call["function"]["arguments"] == '{"a": 1}'  # type: ignore[index]


def test_developer_is_system_to_a_template() -> None:
    """OpenAI's newer word for the system's role reaches templates as the one they know."""
    assert normalize_messages([{"role": "developer", "content": "Be brief."}])[0]["role"] == "system"


def test_any_mapping_and_sequence_will_do() -> None:
    """Python callers may hand over tuples and read-only mappings; what comes out is plain."""
    message = MappingProxyType({"role": "user", "content": "Hi"})
    assert normalize_messages((message,)) == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        (None, "at least one message"),
        ("Hi", "at least one message"),
        ({"role": "user", "content": "Hi"}, "at least one message"),
        (["Hi"], r"messages\[0\] is not an object"),
        ([{"content": "Hi"}], r"messages\[0\].role is None"),
        ([{"role": "pirate", "content": "Hi"}], "role is 'pirate'; it must be one of system"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content must be a text"),
        ([{"role": "user", "content": {"type": "text", "text": "Hi"}}], "must be a text or a list"),
        ([{"role": "user", "content": [{}]}], r"messages\[0\].content\[0\] must be an object with a type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text is not a text"),
        ([{"role": "assistant", "tool_calls": "add"}], "tool_calls must be a list of objects"),
    ],
)
def test_wrong_messages_are_refused_with_their_place(messages: Any, words: str) -> None:
    """What is no message is the caller's error, and the error says where it is."""
    with pytest.raises(InvalidParameterError, match=words) as caught:
        normalize_messages(messages)
    assert caught.value.param == "messages"


def test_images_are_unsupported() -> None:
    """A part that is not text is refused rather than left out."""
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(UnsupportedParameterError, match="reads text only"):
        normalize_messages([{"role": "user", "content": [part]}])
