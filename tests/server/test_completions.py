from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fakes import ByteTokenizer
from server.serving import Served, parse_events, serving
from tokenizer import goldens

URL = "/v1/completions"


def test_the_document_has_openais_shape(server: Served) -> None:
    """One choice with text and reason, and usage with cached tokens always there."""
    document = server.complete("Hi", max_tokens=100)
    assert document["object"] == "text_completion"
    assert document["id"].startswith("cmpl-")
    assert document["model"] == "scripted"
    (choice,) = document["choices"]
    assert (choice["index"], choice["text"], choice["finish_reason"]) == (0, "Hello there!", "stop")
    assert choice["logprobs"] is None
    assert document["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 13,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2}, 2),
        ({"max_tokens": None}, 16),
        ({}, 16),
        ({"min_tokens": 20}, 20),
    ],
)
def test_max_tokens(server: Served, fields: dict, tokens: int, stream: bool) -> None:
    """B36: 1 gives one token of text; null is absent; absent is 16."""
    body = {"prompt": "endless", **fields}
    if stream:
        chunks = server.stream(URL, body)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = server.complete(**body)["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
    assert len(text) == tokens
    assert reason == "length"


def test_the_default_maximum_ends_with_the_context(server: Served) -> None:
    """B55: without max_tokens a prompt just below the context runs, with what room there is."""
    usage = server.complete([97] * 508)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (508, 4)
    assert server.complete([97] * 511, max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("prompt", [[97] * 512, [97] * 600, "a" * 9000])
def test_a_prompt_that_fills_the_context_is_refused(server: Served, prompt: object) -> None:
    """B55: both numbers are in the message, the code is OpenAI's, and nothing is cut."""
    error = server.refusal(URL, {"prompt": prompt, "max_tokens": 1})
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert str(len(prompt)) in error["message"]
    assert "512" in error["message"]


def test_prompt_and_max_tokens_over_the_context_are_refused(server: Served) -> None:
    """B55: the rule is a 400, not a clamp, for a max_tokens that was asked for."""
    error = server.refusal(URL, {"prompt": [97] * 500, "max_tokens": 100})
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_alone(server: Served, stream: bool) -> None:
    """B36: max_tokens 0 with echo returns the prompt, with no hidden token."""
    body = {"prompt": "Hi there", "max_tokens": 0, "echo": True}
    if stream:
        chunks = server.stream(URL, {**body, "stream_options": {"include_usage": True}})
        assert chunks[0]["choices"][0]["text"] == "Hi there"
        assert chunks[0]["choices"][0]["finish_reason"] == "length"
        usage = chunks[-1]["usage"]
    else:
        document = server.complete("Hi there", max_tokens=0, echo=True)
        assert document["choices"][0]["text"] == "Hi there"
        usage = document["usage"]
    assert usage["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_echo_with_logprobs(server: Served, stream: bool, max_tokens: int) -> None:
    """B11, B36: exactly one entry per prompt token, the first null, then those of the output."""
    prompt = "a prompt longer than one block of sixteen tokens"
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 2}
    for _ in range(2):  # the second finds a warm cache
        if stream:
            choices = [chunk["choices"][0] for chunk in server.stream(URL, body)]
            parts = [choice["logprobs"] for choice in choices]
            logprobs = {key: [x for part in parts for x in part[key]] for key in parts[0]}
            text = "".join(choice["text"] for choice in choices)
        else:
            choice = server.complete(**body)["choices"][0]
            logprobs, text = choice["logprobs"], choice["text"]
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + max_tokens
        assert {len(values) for values in logprobs.values()} == {len(prompt) + max_tokens}
        assert "".join(logprobs["tokens"]) == text
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
        assert all(len(top) == 2 for top in logprobs["top_logprobs"][1:])
        assert logprobs["text_offset"] == list(range(len(text)))


def test_echo_of_ids_shows_them_as_text(server: Served) -> None:
    """A prompt of ids is echoed decoded, control tokens included."""
    ids = ByteTokenizer().encode("<|im_start|>x")
    text = server.complete(ids, max_tokens=1, echo=True)["choices"][0]["text"]
    assert text.startswith("<|im_start|>x")


def test_streamed_echo_with_several_choices_has_the_prompts_logprobs_in_each(server: Served) -> None:
    """Every choice begins with the prompt and its logprobs, whichever choice is first."""
    prompt = "shared prompt of several blocks, which a warm cache makes quick for others " * 2
    server.complete(prompt, max_tokens=1)
    body = {"prompt": prompt, "max_tokens": 4, "echo": True, "logprobs": 0, "n": 3}
    seen: dict[int, list] = {0: [], 1: [], 2: []}
    for chunk in server.stream(URL, body):
        (choice,) = chunk["choices"]
        seen[choice["index"]] += choice["logprobs"]["token_logprobs"]
    assert all(len(values) == len(prompt) + 4 for values in seen.values())
    assert seen[0][: len(prompt)] == seen[1][: len(prompt)] == seen[2][: len(prompt)]
    assert None not in seen[1][1:]


def test_logprobs_of_a_text(server: Served) -> None:
    """Tokens join to the text; those within one character share an offset and are spelled as bytes."""
    choice = server.complete("emoji", max_tokens=50, logprobs=3)["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "a😀é世!"
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 4]
    assert logprobs["tokens"][:2] == ["a", "bytes:\\xf0"]
    assert logprobs["tokens"][-1] == "!"  # the end of sequence is not shown
    assert all(len(top) == 3 for top in logprobs["top_logprobs"])


def test_logprobs_zero_gives_the_chosen_token_only(server: Served) -> None:
    """logprobs 0 is not the same as none."""
    logprobs = server.complete("Hi", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "e"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["H"], ["e"]]


def test_prompt_logprobs(server: Served) -> None:
    """vLLM's prompt_logprobs: one entry per prompt token, by id, the first null."""
    choice = server.complete("Hi!", max_tokens=1, prompt_logprobs=2)["choices"][0]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second[str(ord("i"))] == {"logprob": -ord("i") / 256, "rank": 1, "decoded_token": "i"}
    assert len(third) == 2


def test_prompt_logprobs_are_not_streamed(server: Served) -> None:
    """There is no place for them in a stream, so that is said."""
    error = server.refusal(URL, {"prompt": "Hi", "prompt_logprobs": 1, "stream": True})
    assert error["param"] == "prompt_logprobs"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["there", ["zzz", "the"], "o the"])
def test_stop_strings(server: Served, stop: str | list[str], stream: bool) -> None:
    """B20: text ends before the stop string, none of which is sent, and generation ends."""
    expected = "Hello there!".split(stop if isinstance(stop, str) else "the")[0]
    body = {"prompt": "Hi", "stop": stop, "max_tokens": 50}
    if stream:
        choices = [chunk["choices"][0] for chunk in server.stream(URL, body)]
        text, last = "".join(c["text"] for c in choices), choices[-1]
    else:
        last = server.complete(**body)["choices"][0]
        text = last["text"]
    assert text == expected
    assert last["finish_reason"] == "stop"
    assert last["stop_reason"] == (stop if isinstance(stop, str) else "the")


def test_stop_options(server: Served) -> None:
    """The stop string is kept when asked for; a stop token ends; ignore_eos and min_tokens go on."""
    kept = server.complete("Hi", stop="lo", include_stop_str_in_output=True)["choices"][0]
    assert kept["text"] == "Hello"
    token = server.complete("Hi", stop_token_ids=[ord("o")])["choices"][0]
    assert (token["text"], token["finish_reason"], token["stop_reason"]) == ("Hell", "stop", ord("o"))
    on = server.complete("Hi", ignore_eos=True, max_tokens=20)
    assert on["usage"]["completion_tokens"] == 20
    shown = server.complete("Hi", ignore_eos=True, max_tokens=14, skip_special_tokens=False)
    assert shown["choices"][0]["text"] == "Hello there!<|im_end|><|im_end|>"


def test_a_stop_that_names_a_special_token(server: Served) -> None:
    """B26: it works although special tokens are not printed, and is not in the text."""
    choice = server.complete("Hi", stop=["<|im_end|>"], max_tokens=50, logprobs=0)["choices"][0]
    assert choice["text"] == "Hello there!"
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == "Hello there!"


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_of_prompts(server: Served, stream: bool, as_ids: bool) -> None:
    """B58: index is prompt * n + branch, each text starts with its prompt, usage counts prompts once."""
    prompts = ["abcde", "x" * 400, "y" * 30]
    given = [list(p.encode()) for p in prompts] if as_ids else prompts
    body = {"prompt": given, "n": 2, "echo": True, "max_tokens": 8, "seed": 7}
    texts: dict[int, str] = {}
    if stream:
        chunks = server.stream(URL, {**body, "stream_options": {"include_usage": True}})
        for chunk in chunks[:-1]:
            (choice,) = chunk["choices"]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        usage = chunks[-1]["usage"]
    else:
        document = server.complete(**body)
        assert [choice["index"] for choice in document["choices"]] == list(range(6))
        texts = {choice["index"]: choice["text"] for choice in document["choices"]}
        usage = document["usage"]
    assert sorted(texts) == list(range(6))
    for index, text in texts.items():
        prompt = prompts[index // 2]
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + 8
    assert usage["prompt_tokens"] == 435
    assert usage["completion_tokens"] == 48


def test_a_flat_list_of_ids_is_one_prompt(server: Served) -> None:
    """B58: [72, 105] is "Hi"."""
    (choice,) = server.complete([72, 105], max_tokens=50)["choices"]
    assert choice["text"] == "Hello there!"


@pytest.mark.parametrize("stream", [False, True])
def test_one_bad_prompt_refuses_the_batch_and_leaves_nothing_running(server: Served, stream: bool) -> None:
    """B54, B58: the call is a 400, and the other prompts are not left behind."""
    for bad in ("a" * 600, ""):
        body = {"prompt": ["fine", "also fine", bad], "max_tokens": 100, "stream": stream}
        server.refusal(URL, body)
        server.assert_idle()


def test_a_batch_larger_than_the_queue_is_refused() -> None:
    """B28: choices that could not be queued even on an idle server are refused before any work."""
    with serving(engine={"max_num_seqs": 4, "max_num_waiting": 6}) as served:
        error = served.refusal(URL, {"prompt": ["a"] * 6, "n": 2})
        assert error["param"] == "prompt"
        assert "12 choices" in error["message"]
        assert served.refusal(URL, {"prompt": "a", "n": 11})["param"] == "n"
        assert len(served.complete(["a"] * 5, n=2, max_tokens=2)["choices"]) == 10


class ThreadNoting(ByteTokenizer):
    """Notes in which thread it gets which texts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        self.calls.append((threading.current_thread().name, len(texts)))
        return super().encode_batch(texts, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("item", ["a", [1], [-1], None])
def test_a_batch_too_large_is_refused_before_any_prompt_is_looked_at(item: Any) -> None:
    """One request of a million prompts must not stop everybody's streams while it is tokenized or checked."""
    tokenizer = ThreadNoting()
    with serving(tokenizer=tokenizer, engine={"max_num_seqs": 4, "max_num_waiting": 6}) as served:
        error = served.refusal(URL, {"prompt": [item] * 100_000})
        assert "100000 prompts" in error["message"]
        assert tokenizer.calls == []


def test_a_long_batch_is_tokenized_at_once_beside_the_event_loop() -> None:
    """Many short texts are as much work as a long one: one call, in another thread than the streams'."""
    tokenizer = ThreadNoting()
    with serving(tokenizer=tokenizer) as served:
        assert len(served.complete(["Hi " * 20] * 100, max_tokens=1)["choices"]) == 100
        ((thread, number),) = tokenizer.calls
        assert number == 100
        assert thread != "server"


def test_a_batch_of_another_kind_of_item_is_refused(server: Served) -> None:
    """Texts and lists of ids do not mix."""
    assert server.refusal(URL, {"prompt": ["a", [1]]})["param"] == "prompt"
    assert server.refusal(URL, {"prompt": [[1], "a"]})["param"] == "prompt"
    assert server.refusal(URL, {"prompt": [[1], [True]]})["param"] == "prompt"
    assert server.refusal(URL, {"prompt": [1, True]})["param"] == "prompt"


def test_seeded_choices_repeat_and_differ(server: Served) -> None:
    """B30: n choices differ; a seed reproduces them in order; without one, calls differ."""
    seeded = [[c["text"] for c in server.complete("sea", n=8, seed=5)["choices"]] for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert len(set(seeded[0])) == 8
    free = [server.complete("sea")["choices"][0]["text"] for _ in range(8)]
    assert len(set(free)) == 8


def test_cached_tokens_are_reported(server: Served) -> None:
    """usage says how much of the prompt was found in the prefix cache."""
    prompt = "a prompt that is stored in full blocks of sixteen tokens, twice over"
    server.complete(prompt, max_tokens=1)
    details = server.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == 16 * ((len(prompt) - 1) // 16)


def test_whitespace_runs(server: Served) -> None:
    """B54: a prompt of spaces has tokens."""
    assert server.complete("   ", max_tokens=2)["usage"]["prompt_tokens"] == 3


def test_infinite_logprobs_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has no -Infinity, so the lowest logprob is -9999."""
    import fakes
    from chairlift.core.messages import TokenLogprobs

    def minus_infinity(token_id: int, num_top: int) -> TokenLogprobs:
        return TokenLogprobs(token_id, -math.inf, 1, (1, 2)[:num_top], (-0.5, -math.inf)[:num_top])

    monkeypatch.setattr(fakes, "entry_of", minus_infinity)
    with serving({"Hi": "Hello"}) as served:
        logprobs = served.complete("Hi", logprobs=2, max_tokens=1)["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-9999.0]
        assert sorted(logprobs["top_logprobs"][0].values()) == [-9999.0, -9999.0, -0.5]


def test_streams_are_event_streams(server: Served) -> None:
    """Chunks join to the text, and the stream ends with one [DONE]."""
    response = server.post(URL, {"prompt": "emoji", "stream": True, "max_tokens": 50})
    chunks = parse_events(response.text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a😀é世!"
    assert "\ufffd" not in response.text
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_space_of_a_completion_is_kept(stream: bool) -> None:
    """B25: a completion goes on where the prompt ended, also with a tokenizer that drops a text's first space."""
    tokenizer = goldens.spm()
    prompt, output = (tokenizer.encode(text, add_special_tokens=False) for text in ("lift", "token"))
    assert tokenizer.decode(output) == "token"
    engine = {"vocab_size": tokenizer.vocab_size}
    with serving({tuple(prompt): output}, tokenizer=tokenizer, engine=engine) as served:
        body = {"prompt": prompt, "max_tokens": len(output), "echo": True}
        chunks = served.stream(URL, body) if stream else [served.complete(**body)]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "lift token"
