"""What is refused, what is accepted, and what the refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.serving import Served

C, H = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
SHARED = [
    ("temperature", -0.1),
    ("temperature", 1e9),
    ("temperature", float("nan")),
    ("temperature", "1"),
    ("temperature", True),
    ("top_p", -1),
    ("top_p", 1.5),
    ("top_p", float("inf")),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("n", 0),
    ("n", -1),
    ("n", 1000000),
    ("n", "2"),
    ("n", True),
    ("max_tokens", -1),
    ("max_tokens", 2**31),
    ("max_tokens", 0),
    ("min_tokens", -1),
    ("seed", 2**70),
    ("seed", 1.5),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["x"] * 65),
    ("stop", ["x" * 5000]),
    ("stop", [1]),
    ("stop_token_ids", [100000]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("logit_bias", {"100000": 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {"abc": 5}),
    ("logit_bias", {"5": "x"}),
    ("logit_bias", {"5": 1000}),
    ("logit_bias", [1]),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", -1),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("model", 7),
    # known and not supported
    ("use_beam_search", True),
    ("guided_json", {"type": "object"}),
    ("guided_regex", "a+"),
    ("guided_choice", ["a"]),
    ("structured_outputs", {"regex": "a+"}),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "not_real"}),
    ("logits_processors", ["x"]),
    ("length_penalty", 2.0),
    ("truncate_prompt_tokens", 5),
    ("priority", 1),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [1]),
    ("cache_salt", "x"),
    ("lora_request", {"name": "x"}),
    ("mirostat", 2),
    ("mirostat", True),
    ("grammar", "root ::= x"),
    ("best_of", 3),
]
CHAT_ONLY = [
    ("logprobs", 5),
    ("top_logprobs", 21),
    ("top_logprobs", 3),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", -1),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("audio", {"voice": "x"}),
    ("modalities", ["text", "audio"]),
    ("prediction", {"type": "content", "content": "x"}),
    ("reasoning_effort", "high"),
    ("web_search_options", {"x": 1}),
    ("documents", [{"text": "x"}]),
    ("echo", True),
]
COMPLETIONS_ONLY = [
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("suffix", "end"),
    ("best_of", 2),
    ("echo", "yes"),
]


def refused(server: Served, path: str, field: str, value: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"prompt": "Hi"} if path == C else {"messages": MESSAGES}
    content = json.dumps({**base, field: value})  # with NaN where asked for
    response = server.http.post(path, content=content.encode())
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("path", [C, H])
@pytest.mark.parametrize(("field", "value"), SHARED)
def test_shared_fields_out_of_range(server: Served, path: str, field: str, value: Any) -> None:
    """B28, B34, B38, B56: a 400 that names the field, on both endpoints."""
    error = refused(server, path, field, value)
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(("field", "value"), CHAT_ONLY)
def test_chat_fields_out_of_range(server: Served, field: str, value: Any) -> None:
    """The same for fields of chat."""
    assert refused(server, H, field, value)["param"] == field


@pytest.mark.parametrize(("field", "value"), COMPLETIONS_ONLY)
def test_completion_fields_out_of_range(server: Served, field: str, value: Any) -> None:
    """The same for fields of completions."""
    assert refused(server, C, field, value)["param"] == field


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 1},
        {"top_p": 0},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 1},
        {"top_k": 10**9},
        {"min_p": 0},
        {"min_p": 1},
        {"temperature": 0},
        {"temperature": 1e-12},
        {"temperature": 2},
        {"seed": -1},
        {"seed": 2**63},
        {"presence_penalty": -2},
        {"logit_bias": {"97": 100}},
        {"logit_bias": {}},
        {"stop": []},
        {"n": 1, "best_of": 1},
        {"response_format": {"type": "text"}},
        {"priority": 0},
        {"length_penalty": 1.0},
        {"use_beam_search": False},
        {"guided_choice": []},
        {"mirostat": 0},
    ],
)
@pytest.mark.parametrize("path", [C, H])
def test_legal_edges_run(server: Served, path: str, fields: dict[str, Any]) -> None:
    """B28: values at the edge of their range, and no-op values of what is not supported, are accepted."""
    base = {"prompt": "Hi"} if path == C else {"messages": MESSAGES}
    response = server.post(path, {**base, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text
    assert "x-chairlift-ignored-fields" not in response.headers


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"functions": [], "function_call": "none"},
        {"modalities": ["text"]},
        {"parallel_tool_calls": True},
        {"chat_template_kwargs": {}},
        {"logprobs": False, "top_logprobs": 0},
    ],
)
def test_chat_no_ops_run(server: Served, fields: dict[str, Any]) -> None:
    """Fields of chat that are not supported, at values that change nothing."""
    assert server.chat("Hi", max_tokens=2, **fields)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "prompt",
    ["", [""], [], [[]], None, 5, True, {"a": 1}, [1.5], [True], [[1], ["a"]], [[1], 2], ["a", 1], ["a", ""]],
)
def test_prompts_without_tokens_or_form(server: Served, prompt: Any) -> None:
    """B54, B34: a 400 that names the prompt."""
    assert server.refusal(C, {"prompt": prompt})["param"] == "prompt"
    server.assert_idle()


def test_a_missing_prompt(server: Served) -> None:
    """B54: so is none at all."""
    assert server.refusal(C, {})["param"] == "prompt"


@pytest.mark.parametrize("prompt", [[300], [-1], [2**63], [97, 10**30], [[97], [300]]])
def test_ids_outside_the_vocabulary(server: Served, prompt: Any) -> None:
    """B34: the message has the id and the vocabulary's size; nothing is left running."""
    error = server.refusal(C, {"prompt": prompt})
    assert error["param"] == "prompt"
    assert "[0, 300)" in error["message"]
    server.assert_idle()


NULLS = (
    "temperature top_p n stop seed max_tokens logit_bias stream stream_options response_format tools user "
    "logprobs top_logprobs presence_penalty frequency_penalty max_completion_tokens tool_choice model "
    "top_k min_p repetition_penalty stop_token_ids ignore_eos min_tokens include_stop_str_in_output "
    "metadata store skip_special_tokens prompt_logprobs add_generation_prompt continue_final_message "
    "functions audio modalities prediction chat_template chat_template_kwargs guided_json best_of suffix "
    "echo"
)


def test_null_is_absent(server: Served) -> None:
    """B56: every field may be null, alone or all at once, on both endpoints."""
    names = NULLS.split()
    for name in names:
        assert server.chat("Hi", **{name: None})["choices"][0]["message"]["content"] == "Hello there!"
    nulls = dict.fromkeys(names)
    assert server.chat("Hi", **nulls)["choices"][0]["message"]["content"] == "Hello there!"
    assert server.complete("Hi", **nulls)["choices"][0]["text"] == "Hello there!"


def test_unknown_fields_are_listed(server: Served) -> None:
    """B56: a typo does not fail the request and does not pass unnoticed."""
    fields = {"user": "u", "metadata": {}, "store": False, "foo": 1, "temperatur": 0.9, "b\u00e9\n": 1}
    response = server.post(H, {"messages": MESSAGES, **fields})
    assert response.status_code == 200
    assert response.headers["x-chairlift-ignored-fields"] == "foo, temperatur, b??"
    stream = server.post(C, {"prompt": "Hi", "stream": True, "foo": 1})
    assert stream.headers["x-chairlift-ignored-fields"] == "foo"


def test_unknown_fields_are_logged_once(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The operator reads of a name once, not with every request."""
    for _ in range(3):
        server.complete("Hi", tempreture=1)
    assert caplog.text.count("tempreture") == 1


def test_stream_options(server: Served) -> None:
    """Options of a stream need a stream, and those that we lack are named."""
    body = {"prompt": "Hi", "stream": True, "stream_options": {"continuous_usage_stats": True}}
    assert server.refusal(C, body)["param"] == "stream_options"
    body["stream_options"] = {"include_usage": False, "include_obfuscation": False}
    assert "usage" not in server.stream(C, body)[-1]


def test_echo_and_prompt_logprobs_must_agree(server: Served) -> None:
    """Both are about the prompt's logprobs, so they cannot ask for two numbers of alternatives."""
    body = {"prompt": "Hi", "echo": True, "logprobs": 1, "prompt_logprobs": 2}
    assert server.refusal(C, body)["param"] == "prompt_logprobs"


def test_other_requests_are_unharmed(server: Served) -> None:
    """ALIVE: after all the refusals the server answers as before."""
    assert server.http.get("/health").status_code == 200
    assert server.complete("Hi", temperature=0)["choices"][0]["text"] == "Hello there!"
