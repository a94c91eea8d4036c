"""`LLM`: what callers may hand in, from how many threads, and what they hear when it is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift import LLM, SamplingParams
from chairlift.errors import ConfigError, EngineDeadError, InvalidParameterError

SMALL: dict[str, Any] = {"max_model_len": 256, "num_kv_blocks": 64, "threads": 1}
GREEDY = SamplingParams(temperature=0, max_tokens=8)
USER = {"role": "user", "content": "hi there"}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(tiny_model, **SMALL) as opened:
        yield opened


def test_notices_are_logged_once(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A script on the slow backend hears of it; Python shows warnings of a log that nobody set up."""
    with LLM(tiny_model, backend="reference", **SMALL):
        pass
    assert [r.levelno for r in caplog.records if "very slow" in r.getMessage()] == [logging.WARNING]


def test_a_setting_of_the_server_is_refused(tiny_model: Path) -> None:
    """There is no queue limit where the caller hands in everything at once, so it is not swallowed either."""
    with pytest.raises(ConfigError, match=r"max_num_waiting is a setting of `chairlift serve`"):
        LLM(tiny_model, max_num_waiting=3, **SMALL)


def test_prompts_may_be_any_iterable(llm: LLM) -> None:
    """A generator of prompts and one of parameters are as good as lists."""
    texts = ["one", "two", "three"]
    outputs = llm.generate((text for text in texts), (GREEDY for _ in texts))
    assert [output.prompt for output in outputs] == texts
    assert [o.outputs for o in llm.generate(texts, GREEDY)] == [o.outputs for o in outputs]
    ids, same = llm.generate([{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": np.array([5, 6])}], GREEDY)
    assert ids.outputs == same.outputs
    bare, spelled = llm.generate(["one", {"prompt": "one"}], GREEDY)
    assert (bare.prompt, bare.outputs) == (spelled.prompt, spelled.outputs)


@pytest.mark.parametrize(
    "prompts",
    [
        5,
        None,
        b"bytes",
        [5],
        [None],
        [1, 2, 3],
        {"prompt_token_ids": None},
        {"prompt_token_ids": 7},
        {"prompt_token_ids": "7"},
        {"prompt_token_ids": [True, 5]},
        {"prompt_token_ids": np.array([True])},
        {"prompt_token_ids": np.array([[5, 6]])},
        {"prompt_token_ids": [1.5]},
        {"prompt_token_ids": [5], "images": []},
        {"tokens": [5]},
        {"prompt": 5},
        {"prompt": "a", "prompt_token_ids": [5]},
    ],
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    """Anything but texts and token ids is an error that names the field, before anything runs."""
    with pytest.raises(InvalidParameterError, match="prompt") as caught:
        llm.generate(prompts, GREEDY)
    assert caught.value.param == "prompts"


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], [{"max_tokens": 3}], 5, [GREEDY, GREEDY]])
def test_what_is_no_sampling_params_is_refused(llm: LLM, params: Any) -> None:
    """A dict, a number or the wrong count of parameters is an error that names the field."""
    with pytest.raises(InvalidParameterError, match="sampling_params") as caught:
        llm.generate(["hi"], params)
    assert caught.value.param == "sampling_params"


@pytest.mark.parametrize(
    "messages", [[], "hi", None, 5, ["hi"], [{"content": "no role"}], [[]], [USER, "hi"]]
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    """No messages, a bare text and messages without a role are errors that name the field."""
    with pytest.raises(InvalidParameterError, match="messages") as caught:
        llm.chat(messages, GREEDY)
    assert caught.value.param == "messages"


def test_chat_reads_messages_as_the_server_does(llm: LLM) -> None:
    """Content parts, null content and the newer role names give the prompt that their plain spelling gives."""
    plain = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": ""}, USER]
    parts = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "there"}]},
    ]
    one, other = llm.chat([plain, parts], GREEDY)
    assert one.prompt_token_ids == other.prompt_token_ids


def test_chat_repeats_the_rendered_prompt(llm: LLM) -> None:
    """The prompt of an answer is the text that the template made, and its ids are those of that text."""
    (answer,) = llm.chat([USER], GREEDY)
    assert answer.prompt is not None
    assert USER["content"] in answer.prompt
    assert answer.prompt != USER["content"]
    assert llm.generate({"prompt_token_ids": answer.prompt_token_ids}, GREEDY)[0].outputs == answer.outputs


def test_threads_take_turns(llm: LLM) -> None:
    """Four threads that generate and stream at once each get what they would get alone."""
    expected = llm.generate("hello", GREEDY)[0].outputs[0].text
    streamed = "".join(delta.text for delta in llm.stream_chat([USER], GREEDY))

    def work(number: int) -> list[str]:
        if number % 2:
            return ["".join(delta.text for delta in llm.stream_chat([USER], GREEDY)) for _ in range(5)]
        return [llm.generate("hello", GREEDY)[0].outputs[0].text for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert results == [[expected] * 5, [streamed] * 5] * 2


def test_a_stream_lets_other_calls_through(llm: LLM) -> None:
    """Whoever reads a stream slowly, or never to its end, does not lock the others out."""
    stream = llm.stream_chat([USER], GREEDY)
    first = next(stream).text
    assert llm.generate("hello", GREEDY)[0].finished
    assert first + "".join(delta.text for delta in stream) == "".join(
        delta.text for delta in llm.stream_chat([USER], GREEDY)
    )


def test_closed_is_closed(tiny_model: Path) -> None:
    """Closing twice is fine; using it afterwards is an error in words, and a stream under way ends with it too."""
    llm = LLM(tiny_model, **SMALL)
    stream = llm.stream_chat([USER], GREEDY)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="this LLM is closed"):
        llm.generate("hi", GREEDY)
    with pytest.raises(EngineDeadError, match="this LLM is closed"):
        llm.chat([USER], GREEDY)
    with pytest.raises(EngineDeadError, match="this LLM is closed"):
        next(stream)
