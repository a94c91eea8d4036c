"""Section C of the bug cases: streaming and text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cases.conftest import Serve
from cases.service import CHAT, COMPLETIONS, Service
from chairlift.config import EngineConfig, ModelConfig
from chairlift.factory import open_front
from chairlift.tokenizer.base import Tokenizer
from fakes import ScriptedRunner
from server.serving import serving

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"


def bytes_of(tokens: Sequence[str]) -> bytes:
    """The bytes behind the token spellings of a text completion's logprobs."""
    return b"".join(
        codecs.escape_decode(token.removeprefix("bytes:"))[0]
        if token.startswith("bytes:")
        else token.encode()
        for token in tokens
    )


# -- B18 -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    """The default model's own."""
    return open_front(EngineConfig(model=ModelConfig(model=str(default_model)))).tokenizer


@pytest.mark.parametrize("literal", ["\U0001f600" * 4, "ď" * 4, "世" * 4, FAMILY + " ok " + FAMILY])
def test_b18_a_character_of_several_tokens_arrives_whole(tokenizer: Tokenizer, literal: str) -> None:
    """B18: with the real tokenizer, and a runner that is made to write it, no delta has half a character."""
    script = tokenizer.encode(literal, add_special_tokens=False)
    assert any(not _is_text(tokenizer.token_bytes(token_id)) for token_id in script)  # some are spread
    fields: dict[str, Any] = {"max_tokens": len(script)}
    prompt = tokenizer.encode("1")
    with serving(
        runner=ScriptedRunner({tuple(prompt): script}),
        tokenizer=tokenizer,
        template="{{ messages[0]['content'] }}",
    ) as served:
        choice = served.complete(prompt, logprobs=1, **fields)["choices"][0]
        assert choice["text"] == literal
        assert bytes_of(choice["logprobs"]["tokens"]) == literal.encode()
        chunks = served.stream(COMPLETIONS, {"prompt": prompt, **fields})
        assert_whole([chunk["choices"][0]["text"] for chunk in chunks], literal)

        body = {"messages": [{"role": "user", "content": "1"}], "logprobs": True, "top_logprobs": 2, **fields}
        choice = served.chat("1", logprobs=True, **fields)["choices"][0]
        assert choice["message"]["content"] == literal
        entries = choice["logprobs"]["content"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]) == literal.encode()
        choices = [chunk["choices"][0] for chunk in served.stream(CHAT, body)]
        assert_whole([choice["delta"].get("content", "") for choice in choices], literal)


def test_b18_the_real_model_too(serve: Serve) -> None:
    """B18: a model that goes on with characters of two tokens each streams them whole."""
    service, prompt = serve(), "ď" * 6
    fields = {"max_tokens": 20, "temperature": 0, "logprobs": 1}
    whole = service.complete(prompt, **fields)["choices"][0]
    assert "bytes:\\xc4" in whole["logprobs"]["tokens"]  # or it shows nothing
    assert whole["text"] == bytes_of(whole["logprobs"]["tokens"]).decode()
    chunks = service.stream(COMPLETIONS, {"prompt": prompt, **fields})
    assert_whole([chunk["choices"][0]["text"] for chunk in chunks], whole["text"])


def assert_whole(deltas: list[str], literal: str) -> None:
    """Deltas join to the literal, and none has a replacement character."""
    assert "".join(deltas) == literal
    assert "\ufffd" not in literal
    assert sum(map(bool, deltas)) > 1 or len(literal) == 1  # it was a stream


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- B20 -----------------------------------------------------------------------------------------------------
def test_b20_a_stop_string_across_tokens_is_never_shown(serve: Serve) -> None:
    """B20: the text ends right before it, streamed or not, on both endpoints, and generation really stops."""
    service, alphabet = serve(), "Here is the English alphabet: ABC"
    fields = {"temperature": 0, "max_tokens": 32}
    answer = service.complete(alphabet, logprobs=1, **fields)
    text, tokens = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["tokens"]
    stop = text[4:11]
    starts = {sum(map(len, tokens[:i])) for i in range(len(tokens))}
    assert 4 not in starts  # it begins inside a token
    assert any(4 < start < 11 for start in starts)  # and covers two at least

    stopped = service.complete(alphabet, stop=[stop], **fields)
    assert stopped["choices"][0]["text"] == text[: text.index(stop)]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] < answer["usage"]["completion_tokens"]
    streamed = service.streamed(alphabet, stop=[stop], **fields)
    assert streamed["text"] == text[: text.index(stop)]
    assert streamed["finish_reason"] == "stop"

    messages = [{"role": "user", "content": "Say hi"}]
    reply = service.chat(messages, **fields)["choices"][0]["message"]["content"]
    stop = reply[3:10]
    choice = service.chat(messages, stop=stop, **fields)["choices"][0]
    assert choice["message"]["content"] == reply[: reply.index(stop)]
    assert choice["finish_reason"] == "stop"
    chunks = list(service.stream(CHAT, {"messages": messages, "stop": stop, **fields}))
    assert content_of(chunks) == reply[: reply.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_b20_nothing_is_computed_after_a_stop_string(serve: Serve) -> None:
    """B20: the engine's own counter says that generation ended, not only that its text was hidden."""
    service, alphabet = serve(), "Here is the English alphabet: ABC"
    before = service.metrics()["generation_tokens_total"]
    service.complete(alphabet, stop=["F"], temperature=0, max_tokens=500)
    service.assert_idle()
    assert service.metrics()["generation_tokens_total"] - before < 10
    assert len(service.steps()[-1]["rows"]) <= 1


def content_of(chunks: Sequence[Any], index: int = 0) -> str:
    """The joined deltas of a chat stream's choice."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# -- B23 -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("include_usage", [False, True])
def test_b23_the_chunk_contract_by_hand(serve: Serve, include_usage: bool) -> None:
    """B23: one id, the role first, null reasons until the last of each index, usage in an extra last chunk."""
    service = serve()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "n": 2, "max_tokens": 5}
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = list(service.stream(CHAT, {**body, **options}))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        reference = service.ask(CHAT, body)["usage"]
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [last["usage"][name] for name in names] == [reference[name] for name in names]
        assert all(chunk["usage"] is None for chunk in chunks)
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"]["role"] == "assistant"
        reasons = [choice["finish_reason"] for choice in choices]  # the key is always there
        assert reasons[:-1] == [None] * (len(choices) - 1)
        assert reasons[-1] in ("stop", "length")
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1}


def test_b23_the_official_client_agrees(serve: Serve) -> None:
    """B23: openai's client parses stream and document to the same messages, reasons and usage."""
    service = serve()
    messages: Any = [{"role": "user", "content": "Hello"}]
    with service.openai() as client:
        whole = client.chat.completions.create(
            model="", messages=messages, n=2, max_tokens=8, temperature=1.0, seed=3
        )
        texts, reasons, usage = {0: "", 1: ""}, {}, None
        with client.chat.completions.create(
            model="",
            messages=messages,
            n=2,
            max_tokens=8,
            temperature=1.0,
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    if choice.finish_reason is not None:
                        assert choice.index not in reasons
                        reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert texts[0] != texts[1]
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 16
    assert usage.prompt_tokens == whole.usage.prompt_tokens


# -- B25 -----------------------------------------------------------------------------------------------------
PROMPTS = [
    "The capital of France is",
    "def f():\n",
    "- a\n-",
    "1, 2,",
    "Hello",
    "Hello ",
    " Hello",
    "\n\n\t",
    "I don't",
    'He said: "',
    "x = [1, 2",
    "    .",
    "<p>",
    "# Title\n\n",
    "caf\u00e9, na\u00efve,",
    "A:\tB:\t",
    "\u4f60\u597d",
    "Q: What is 2+2?\nA:",
    "...",
    "SELECT * FROM",
]


def test_b25_streams_documents_and_tokens_have_one_text(serve: Serve) -> None:
    """B25: for 20 prompts, joined deltas, the document's text and the decoded output tokens are equal."""
    service = serve()
    assert len(PROMPTS) == 20
    fields = {"temperature": 0, "max_tokens": 16, "ignore_eos": True, "logprobs": 0}
    bodies = [{"prompt": prompt, **fields} for prompt in PROMPTS]
    wholes = service.at_once([lambda body=body: service.complete(**body)["choices"][0] for body in bodies])
    streams = service.at_once([lambda body=body: service.streamed(**body) for body in bodies])
    firsts = set()
    for whole, stream in zip(wholes, streams, strict=True):
        assert stream["text"] == whole["text"]
        shown = [token for token in whole["logprobs"]["tokens"] if not is_special(token)]
        assert whole["text"] == bytes_of(shown).decode(errors="replace")
        firsts.add(whole["text"][:1])
    assert " " in firsts  # a first space is kept


def is_special(token: str) -> bool:
    """True for the spelling of one of the default model's control tokens."""
    return token.startswith("<|") and token.endswith("|>")


# -- B26 -----------------------------------------------------------------------------------------------------
MARKER = "<|im_end|>"


def test_b26_a_turns_end_is_a_stop_and_is_not_shown(serve: Serve) -> None:
    """B26: chat ends at the turn's end, with reason stop, and the marker is in no text; streamed and not."""
    service = serve()
    fields = {"temperature": 0, "max_tokens": 100}
    choice = service.chat("Say hi", **fields)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert MARKER not in choice["message"]["content"]
    assert choice["message"]["content"]
    chunks = list(service.stream(CHAT, {"messages": [{"role": "user", "content": "Say hi"}], **fields}))
    assert content_of(chunks) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"

    forced = service.chat("Say hi", logit_bias={"2": 100}, **fields)
    assert forced["choices"][0]["message"]["content"] == ""
    assert forced["choices"][0]["finish_reason"] == "stop"
    assert forced["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_b26_a_stop_may_name_a_special_token(serve: Serve, ignore_eos: bool) -> None:
    """B26: stop=["<|im_end|>"] works although special tokens are not printed, also where EOS is ignored."""
    service = serve()
    chat = service.chat("Say hi", temperature=0, max_tokens=100)["choices"][0]["message"]["content"]
    tokens = service.ask("/tokenize", {"messages": [{"role": "user", "content": "Say hi"}]})["tokens"]
    chatml = service.ask("/detokenize", {"tokens": tokens})["prompt"]
    assert chatml.endswith("<|im_start|>assistant\n")
    fields = {"temperature": 0, "max_tokens": 100, "ignore_eos": ignore_eos, "stop": [MARKER]}
    choice = service.complete(chatml, **fields)["choices"][0]
    assert choice["text"] == chat
    assert choice["finish_reason"] == "stop"
    streamed = service.streamed(chatml, **fields)
    assert (streamed["text"], streamed["finish_reason"]) == (chat, "stop")


def test_b26_a_stop_id_ends_without_being_shown(serve: Serve) -> None:
    """B26: stop_token_ids with a forced token gives an empty text and reason stop."""
    service: Service = serve()
    answer = service.complete("Hi", logit_bias={"7042": 100}, stop_token_ids=[7042], temperature=0)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
