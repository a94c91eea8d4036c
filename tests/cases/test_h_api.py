"""Section H of the bug cases: the HTTP API."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cases.conftest import Serve
from cases.service import CHAT, COMPLETIONS, ids, mixed

USER = {"role": "user", "content": "Hi"}


# -- B54 -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, "absent", ["Hi", ""], [[504], []]])
def test_b54_a_prompt_without_tokens_is_refused(serve: Serve, prompt: Any) -> None:
    """B54: this model adds no BOS, so what is empty is a 400; one empty prompt of a batch refuses the call."""
    service = serve()
    body = {} if prompt == "absent" else {"prompt": prompt}
    assert service.refusal(COMPLETIONS, {**body, "max_tokens": 2})["param"] == "prompt"
    assert service.is_idle()  # nothing of a batch was left running


@pytest.mark.parametrize("messages", [[], None, "absent", [{}], ["x"], "Hi"])
def test_b54_messages_that_are_none_are_refused(serve: Serve, messages: Any) -> None:
    """B54: a 400 that names messages."""
    service = serve()
    body = {} if messages == "absent" else {"messages": messages}
    assert service.refusal(CHAT, {**body, "max_tokens": 2})["param"] == "messages"


def test_b54_odd_but_legal_prompts_run(serve: Serve) -> None:
    """B54: spaces are tokens; a conversation may have no user, or a user who says nothing."""
    service = serve()
    assert service.complete("   ", max_tokens=2)["usage"]["completion_tokens"] == 2
    for messages in (
        [{"role": "user"}],
        [{"role": "system", "content": "Be brief."}],
        [{"role": "assistant", "content": "Hello"}],
    ):
        answer = service.chat(messages, max_tokens=2)
        assert 1 <= answer["usage"]["completion_tokens"] <= 2


# -- B55 -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n", "fields", "numbers"),
    [
        (9000, {}, ("9000", "8192")),
        (8192, {}, ("8192",)),
        (8192, {"max_tokens": 1}, ("8192",)),
        (8000, {"max_tokens": 1000}, ("8000", "1000", "9000", "8192")),
    ],
)
def test_b55_an_over_long_prompt_is_refused_with_the_numbers(
    serve: Serve, n: int, fields: dict[str, Any], numbers: tuple[str, ...]
) -> None:
    """B55: never cut, never clamped: a 400 in OpenAI's code within a second, streamed or not, on both endpoints."""
    service = serve()
    assert service.ask("/tokenize", {"prompt": "x"})["max_model_len"] == 8192
    word = " the"  # one token each time
    chat_overhead = (
        len(service.ask("/tokenize", {"messages": [{"role": "user", "content": word * 10}]})["tokens"]) - 10
    )
    content = word * (n - chat_overhead)
    for path, prompt in (
        (COMPLETIONS, {"prompt": ids(n)}),
        (CHAT, {"messages": [{"role": "user", "content": content}]}),
    ):
        for stream in (False, True):
            start = time.monotonic()
            error = service.refusal(path, {**prompt, **fields, "stream": stream})
            assert time.monotonic() - start < 5  # a second on an idle machine
            assert error["code"] == "context_length_exceeded"
            for number in numbers:
                assert number in error["message"]
    assert service.is_idle()


def test_b55_a_prompt_that_just_fits_runs(serve: Serve) -> None:
    """B55: context - 1 tokens and one of output are answered; without max_tokens the answer ends at the context."""
    service = serve("--num-kv-blocks", "40", "--max-num-seqs", "8")
    limit = service.ask("/tokenize", {"prompt": "x"})["max_model_len"]
    assert limit == 640  # clamped to the pool, as the notes at start say
    assert "640" in service.log()
    assert service.complete(ids(limit - 1), max_tokens=1)["usage"]["completion_tokens"] == 1
    answer = service.complete(ids(limit - 6), ignore_eos=True)
    assert answer["usage"]["total_tokens"] == limit
    assert answer["choices"][0]["finish_reason"] == "length"
    error = service.refusal(COMPLETIONS, {"prompt": ids(limit - 6), "max_tokens": 7})
    assert error["code"] == "context_length_exceeded"


# -- B56 -----------------------------------------------------------------------------------------------------
NULLABLE = [
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "max_tokens",
    "logit_bias",
    "stream",
    "stream_options",
    "response_format",
    "tools",
    "user",
    "tool_choice",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
    "metadata",
    "store",
]


def test_b56_null_is_absent(serve: Serve) -> None:
    """B56: every field at null, alone and all at once, gives the answer of the request without it."""
    service = serve()
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 3}
    expected = service.chat([USER], **fields)["choices"]
    for name in set(NULLABLE) - set(fields):
        assert service.chat([USER], **fields, **{name: None})["choices"] == expected, name
    everything = service.ask(
        CHAT, {"messages": [USER], **dict.fromkeys(NULLABLE), "max_completion_tokens": 3}
    )
    assert everything["usage"]["completion_tokens"] <= 3


def test_b56_unknown_fields_pass_and_are_listed(serve: Serve) -> None:
    """B56: clients' additions and typos don't fail a request, and a header and the log tell of them."""
    service = serve()
    body = {"messages": [USER], "max_tokens": 1, "user": "u", "metadata": {}, "store": False}
    response = service.post(CHAT, {**body, "foo": 1, "temperatur": 0.9})
    assert response.status_code == 200
    listed = response.headers["x-chairlift-ignored-fields"].split(", ")
    assert sorted(listed) == ["foo", "temperatur"]
    service.post(CHAT, {**body, "foo": 1, "temperatur": 0.9})
    assert service.log().count("temperatur'") == 1  # logged once


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "not_real"}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("chat_template", "{{ 7*7 }}"),
        ("use_beam_search", True),
        ("priority", 3),
    ],
)
def test_b56_what_would_change_the_answer_is_not_ignored(serve: Serve, field: str, value: Any) -> None:
    """B56: a field that is known and not supported is a 400 that names it."""
    assert serve().refusal(CHAT, {"messages": [USER], field: value})["param"] == field


# -- B58 -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
def test_b58_a_batch_keeps_order_and_index(serve: Serve, stream: bool) -> None:
    """B58: index is prompt * n + j, each text starts with its own prompt, usage counts each prompt once."""
    service = serve()
    prompts = [mixed(5, 581), mixed(200, 582), mixed(30, 583)]
    shown = [service.ask("/detokenize", {"tokens": prompt})["prompt"] for prompt in prompts]
    body = {"prompt": prompts, "n": 2, "echo": True, "max_tokens": 8, "seed": 1, "ignore_eos": True}
    whole = service.ask(COMPLETIONS, body)
    texts = {choice["index"]: choice["text"] for choice in whole["choices"]}
    if stream:
        texts = dict.fromkeys(range(6), "")
        for chunk in service.stream(COMPLETIONS, {**body, "stream_options": {"include_usage": True}}):
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
            usage = chunk["usage"]
        assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    else:
        assert [choice["index"] for choice in whole["choices"]] == list(range(6))
        usage = whole["usage"]
    for index in range(6):
        assert texts[index].startswith(shown[index // 2])
    assert texts[2] != texts[3]
    assert usage["prompt_tokens"] == 5 + 200 + 30
    assert usage["completion_tokens"] == 6 * 8
    again = service.ask(COMPLETIONS, body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert again == 0 + 192 + 16  # over the batch, once per prompt


def test_b58_a_flat_list_of_ids_is_one_prompt(serve: Serve) -> None:
    """B58: [504, 2365] is one prompt of two tokens, [[504], [2365]] two of one."""
    service = serve()
    flat = service.complete([504, 2365], max_tokens=1)
    assert (len(flat["choices"]), flat["usage"]["prompt_tokens"]) == (1, 2)
    nested = service.complete([[504], [2365]], max_tokens=1)
    assert (len(nested["choices"]), nested["usage"]["prompt_tokens"]) == (2, 2)


def test_b58_one_over_long_prompt_refuses_the_call(serve: Serve) -> None:
    """B58: a 400 for the whole batch, and nothing of it is left running."""
    service = serve()
    for stream in (False, True):
        body = {"prompt": [ids(5), ids(9000), ids(30)], "max_tokens": 100, "stream": stream}
        assert service.refusal(COMPLETIONS, body)["code"] == "context_length_exceeded"
        service.assert_idle(2)
