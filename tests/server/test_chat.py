from __future__ import annotations

from typing import Any

import pytest

from server.conftest import HI
from server.serving import CHATML, Served, chat_prompt, serving

URL = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}


def prompt_of(server: Served, messages: list[Any], **fields: Any) -> str:
    """The text that the messages become."""
    tokens = server.post("/tokenize", {"messages": messages, **fields}).json()["tokens"]
    text: str = server.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    return text


def test_the_document_has_openais_shape(server: Served) -> None:
    """One message of the assistant, its reason, and usage."""
    document = server.chat("Hi")
    assert document["object"] == "chat.completion"
    assert document["id"].startswith("chatcmpl-")
    (choice,) = document["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert document["usage"]["prompt_tokens"] == len(
        HI.replace("<|im_start|>", "1").replace("<|im_end|>", "2")
    )
    assert document["usage"]["completion_tokens"] == 13


@pytest.mark.parametrize("include_usage", [False, True])
def test_the_chunk_contract(server: Served, include_usage: bool) -> None:
    """B23: ids equal, the role first, one reason per index, usage in one extra last chunk."""
    body: dict[str, Any] = {"messages": [USER], "n": 2, "max_tokens": 5}
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    chunks = server.stream(URL, body)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 10
        assert (
            last["usage"]["prompt_tokens"] == server.chat("Hi", n=2, max_tokens=5)["usage"]["prompt_tokens"]
        )
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for index in (0, 1):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons == [None] * (len(choices) - 1) + ["length"]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello"


def test_stream_and_document_agree(server: Served) -> None:
    """B18, B25: joined deltas are the content; no delta has a broken character."""
    messages = [{"role": "user", "content": "emoji"}]
    chunks = server.stream(URL, {"messages": messages, "logprobs": True, "top_logprobs": 2})
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    whole = server.chat(messages, logprobs=True, top_logprobs=2)["choices"][0]
    assert "".join(deltas) == whole["message"]["content"] == "a😀é世!"
    assert not any("\ufffd" in delta for delta in deltas)
    streamed = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole["logprobs"]["content"]


def test_logprobs(server: Served) -> None:
    """B18: the entries' bytes join to the content's UTF-8; alternatives are as many as asked for."""
    messages = [{"role": "user", "content": "emoji"}]
    content = server.chat(messages, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "a😀é世!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert content[0]["token"] == "a"
    assert content[0]["logprob"] == -ord("a") / 256
    without = server.chat(messages, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in without)
    assert server.chat(messages)["choices"][0]["logprobs"] is None


def test_prompt_logprobs(server: Served) -> None:
    """vLLM's field is at the top of the document, one entry per prompt token."""
    document = server.chat("Hi", prompt_logprobs=1, max_tokens=1)
    assert len(document["prompt_logprobs"]) == document["usage"]["prompt_tokens"]
    assert document["prompt_logprobs"][0] is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_completion_tokens": 2}, 2),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
        ({"max_tokens": None, "max_completion_tokens": 4}, 4),
    ],
)
def test_max_tokens(server: Served, fields: dict, tokens: int, stream: bool) -> None:
    """B36: max_completion_tokens wins over max_tokens, its older name."""
    body = {"messages": [{"role": "user", "content": "endless"}], **fields}
    if stream:
        chunks = server.stream(URL, body)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    else:
        text = server.chat(**body)["choices"][0]["message"]["content"]
    assert len(text) == tokens


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
def test_without_a_maximum_an_answer_may_fill_the_context(server: Served, fields: dict) -> None:
    """B36: absent and null mean up to the context."""
    document = server.chat("endless", **fields)
    assert document["usage"]["total_tokens"] == 512
    assert document["choices"][0]["finish_reason"] == "length"


def test_a_chat_over_the_context_is_refused(server: Served) -> None:
    """B55: the same rule as for completions, naming messages."""
    error = server.refusal(URL, {"messages": [{"role": "user", "content": "a" * 600}]})
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"


def test_content_parts_are_joined(server: Served) -> None:
    """B46: text parts give the same prompt as the text."""
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    assert prompt_of(server, [{"role": "user", "content": parts}]) == chat_prompt(("user", "AB"))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
    ],
)
def test_no_content_is_empty(server: Served, message: dict) -> None:
    """B46: null, missing and "" are one; no None gets into the prompt."""
    assert prompt_of(server, [USER, message]) == chat_prompt(("user", "Hi"), ("assistant", ""))


def test_tool_messages(server: Served) -> None:
    """B46: a tool's answer is rendered by the template, as text or parts."""
    for content in ("42", [{"type": "text", "text": "42"}]):
        message = {"role": "tool", "tool_call_id": "1", "content": content}
        assert prompt_of(server, [USER, message]) == chat_prompt(("user", "Hi"), ("tool", "42"))


def test_developer_is_system(server: Served) -> None:
    """B46: OpenAI's newer word for the older one that templates know."""
    messages = [{"role": "developer", "content": "D"}, USER]
    assert prompt_of(server, messages) == chat_prompt(("system", "D"), ("user", "Hi"))


@pytest.mark.parametrize(
    "messages",
    [[{"role": "system", "content": "S"}], [{"role": "assistant", "content": "A"}], [{"role": "user"}]],
)
def test_any_single_message_runs(server: Served, messages: list) -> None:
    """B54: a system message alone, or one without content, still makes a prompt."""
    assert server.chat(messages, max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "at least one message"),
        ([], "at least one message"),
        ("Hi", "at least one message"),
        ([{}], "messages[0].role is None"),
        ([None], "messages[0] is not an object"),
        ([USER, {"role": "foo", "content": "x"}], "messages[1].role is 'foo'"),
        ([{"role": "user", "content": 5}], "messages[0].content must be"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "'image_url'"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "'input_audio'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0] must be"),
        ([{"role": "assistant", "tool_calls": "x"}], "tool_calls must be a list"),
        ([{"role": "user", "content": "\ud800"}], "not valid JSON"),
    ],
)
def test_wrong_messages_are_refused(server: Served, messages: Any, message: str) -> None:
    """B46, B54: what is no list of messages of text is a 400 that says where."""
    import json

    content = json.dumps({"messages": messages})
    response = server.http.post(URL, content=content.encode())
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] in ("messages", None)


def test_user_text_is_never_rendered(server: Served) -> None:
    """B73: braces of a user are text."""
    assert "{{7*7}}" in prompt_of(server, [{"role": "user", "content": "{{7*7}}"}])


@pytest.mark.parametrize(
    ("field", "value"),
    [("chat_template", "{{ 7*7 }}"), ("chat_template_kwargs", {"chat_template": "x"})],
)
def test_request_templates_are_refused(server: Served, field: str, value: Any) -> None:
    """B73: a request brings no template and no values for one."""
    error = server.refusal(URL, {"messages": [USER], field: value})
    assert error["param"] == field
    assert "never from a request" in error["message"] or "no values from a request" in error["message"]


def test_hostile_templates_answer_with_an_error() -> None:
    """B73: a template that burns CPU is a 400 and other requests flow on."""
    hostile = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with serving({"Hi": "Hello"}, template=hostile) as served:
        error = served.refusal(URL, {"messages": [USER]})
        assert "steps" in error["message"]
        assert served.complete("Hi")["choices"][0]["text"] == "Hello"


def test_a_refusal_of_the_template_is_a_400() -> None:
    """raise_exception's words reach the client."""
    with serving(template="{{ raise_exception('roles must alternate') }}") as served:
        assert "roles must alternate" in served.refusal(URL, {"messages": [USER]})["message"]


def test_a_model_without_template_says_so() -> None:
    """A base model answers completions only."""
    with serving({"Hi": "Hello"}, template=None) as served:
        assert "no chat template" in served.refusal(URL, {"messages": [USER]})["message"]
        assert served.complete("Hi")["choices"][0]["text"] == "Hello"


def test_the_final_message_can_be_continued(server: Served) -> None:
    """continue_final_message leaves the last message open."""
    messages = [USER, {"role": "assistant", "content": "Sure, "}]
    text = prompt_of(server, messages, continue_final_message=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure, "
    closed = prompt_of(server, messages, add_generation_prompt=False)
    assert closed == text + "<|im_end|>\n"
    error = server.refusal(
        URL, {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    )
    assert error["param"] == "continue_final_message"


def test_special_tokens_are_not_added_to_a_rendered_prompt() -> None:
    """B45: the template writes them all; the tokenizer adds none unless asked to."""
    from server.bos import BosTokenizer

    with serving(tokenizer=BosTokenizer(), template="<|im_start|>" + CHATML) as served:
        tokens = served.post("/tokenize", {"messages": [USER]}).json()["tokens"]
        assert tokens[:2] == [257, 257]  # one is the template's BOS, one begins the turn
        assert served.post("/tokenize", {"prompt": "Hello"}).json()["tokens"][0] == 257
        assert served.post("/tokenize", {"prompt": "<|im_start|>Hello"}).json()["tokens"].count(257) == 1
        plain = served.post("/tokenize", {"prompt": "Hello", "add_special_tokens": False}).json()["tokens"]
        assert 257 not in plain
