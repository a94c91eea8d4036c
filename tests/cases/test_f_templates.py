"""Section F of the bug cases: chat templates and tokenizers (B49 is tests/tokenizer)."""

from __future__ import annotations

from typing import Any

import pytest

from cases.conftest import Serve
from cases.service import CHAT

USER = {"role": "user", "content": "hi"}


def test_b45_templates_write_all_special_tokens(serve: Serve) -> None:
    """B45: this model has no BOS of its own: chat has just what the template writes, plain text has none."""
    service = serve()
    tokens = service.ask("/tokenize", {"messages": [USER]})["tokens"]
    text = service.ask("/detokenize", {"tokens": tokens})["prompt"]
    # What transformers' apply_chat_template gives for this model: three turns are opened, two closed.
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokens.count(1), tokens.count(2)) == (3, 2)
    assert service.chat([USER], max_tokens=1)["usage"]["prompt_tokens"] == len(tokens)
    assert service.ask("/tokenize", {"prompt": text})["tokens"] == tokens

    assert service.ask("/tokenize", {"prompt": "Hello"})["tokens"] == [19556]
    assert service.complete("Hello", max_tokens=1)["usage"]["prompt_tokens"] == 1
    typed = service.ask("/tokenize", {"prompt": "<|im_start|>Hello"})["tokens"]
    assert typed == [1, 19556]  # a leading BOS that a user types is not doubled


def test_b46_content_in_parts_is_the_joined_text(serve: Serve) -> None:
    """B46: text parts, as objects, give the prompt and the reply of the text."""
    service = serve()
    fields = {"temperature": 0, "max_tokens": 8}
    plain = service.chat([{"role": "user", "content": "AB"}], **fields)
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    answer = service.chat([{"role": "user", "content": parts}], **fields)
    assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert answer["choices"] == plain["choices"]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "messages",
    [
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "4"},
        ],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
        ],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ""}],
        [{"role": "developer", "content": "Be brief."}, USER],
    ],
)
def test_b46_null_is_empty_and_nothing_is_printed_as_python(serve: Serve, messages: list[Any]) -> None:
    """B46: no None, no list and no dictionary gets into the prompt, and the request is answered."""
    service = serve()
    tokens = service.ask("/tokenize", {"messages": messages})["tokens"]
    text = service.ask("/detokenize", {"tokens": tokens})["prompt"]
    for leaked in ("None", "null", "[{", "{'", "type"):
        assert leaked not in text
    assert text.endswith("<|im_start|>assistant\n")
    assert service.chat(messages, max_tokens=2)["usage"]["prompt_tokens"] == len(tokens)


def test_b46_missing_null_and_empty_are_one(serve: Serve) -> None:
    """B46: three spellings of nothing make one prompt."""
    service = serve()
    spellings: list[Any] = [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": ""},
    ]
    prompts = [service.ask("/tokenize", {"messages": [message]})["tokens"] for message in spellings]
    assert prompts[0] == prompts[1] == prompts[2]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]},
        {"role": "foo", "content": "hi"},
        {"role": "user", "content": 5},
        {"content": "hi"},
    ],
)
def test_b46_what_is_no_text_message_is_refused(serve: Serve, message: Any) -> None:
    """B46: images and unknown roles are a 400 that says where."""
    service = serve()
    error = service.refusal(CHAT, {"messages": [USER, message]})
    assert error["param"] == "messages"
    assert "messages[1]" in error["message"]
