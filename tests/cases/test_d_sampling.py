"""Section D of the bug cases: sampling and logprobs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cases.conftest import Serve
from cases.service import CHAT, COMPLETIONS, bits, ids, joined, mixed

TIE = 0.05  # of transformers' own top two logits: closer ones may come out either way

# -- B27 -----------------------------------------------------------------------------------------------------
CITY = {"prompt": "San Francisco is a", "max_tokens": 7, "seed": 1, "logprobs": 2}
TINY = [1e-12, 1e-8, 1e-6, 1e-5, 1e-4]


@pytest.mark.parametrize("bias", [{}, {"1041": -100, "260": -100}])
def test_b27_tiny_temperatures_are_greedy(serve: Serve, bias: dict[str, float]) -> None:
    """B27: down to 1e-12 the answer is the greedy one, in one batch with temperatures 0 and 1.5, which keep theirs."""
    service = serve()
    temperatures = [0, *TINY, 1e-3, 1.5]
    bodies = [{**CITY, "logit_bias": bias, "temperature": t} for t in temperatures]
    alone = [bits(service.complete(**body)["choices"][0]) for body in bodies]
    batch = service.at_once([lambda body=body: service.complete(**body) for body in bodies])
    together = [bits(answer["choices"][0]) for answer in batch]
    assert together == alone
    for temperature, answer in zip(temperatures, alone, strict=True):
        assert all(math.isfinite(logprob) for logprob in answer[3])
        if temperature <= 1e-4:
            assert answer == alone[0]
    assert alone[-1] != alone[0]  # the hot neighbour is hot


# -- B28 -----------------------------------------------------------------------------------------------------
NAN = float("nan")
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 1e9}),
    ("temperature", {"temperature": NAN}),
    ("top_p", {"top_p": -1}),
    ("top_p", {"top_p": 1.5}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.1}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("repetition_penalty", {"repetition_penalty": -1}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("n", {"n": 1_000_000}),
    ("best_of", {"n": 2, "best_of": 1}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 2**31 - 1}),
    ("logprobs", {"logprobs": 21}),
    ("seed", {"seed": 2**70}),
]
WRONG_IN_CHAT: list[tuple[str, dict[str, Any]]] = [
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("max_tokens", {"max_tokens": 2**31 - 1}),
    ("max_completion_tokens", {"max_completion_tokens": -1}),
    ("n", {"n": 1_000_000}),
]


def test_b28_out_of_range_is_a_400_that_names_the_field(serve: Serve) -> None:
    """B28: refused before any work: no memory is taken, nothing is computed."""
    service = serve()
    messages = [{"role": "user", "content": "Hi"}]
    service.refusal(COMPLETIONS, {"prompt": "Hi", "top_k": -2})
    rss, steps = service.rss(), service.metrics()["iteration_tokens_total_count"]
    for field, fields in WRONG:
        error = service.refusal(COMPLETIONS, {"prompt": "Hi", **fields})
        assert error["param"] == field or error["code"] == "invalid_json", (fields, error)  # NaN is no JSON
    for field, fields in WRONG_IN_CHAT:
        assert service.refusal(CHAT, {"messages": messages, **fields})["param"] == field, fields
    assert service.metrics()["iteration_tokens_total_count"] == steps
    assert service.rss() - rss < 32 * 2**20


def test_b28_edges_are_legal_and_mean_what_they_say(serve: Serve) -> None:
    """B28: "off" values change nothing; top_k=1 and top_p=0 (documented: most likely token) are greedy."""
    service = serve()

    def answer(**fields: Any) -> Any:
        body = {"prompt": "The sea is", "max_tokens": 8, "seed": 5, "logprobs": 1, **fields}
        return bits(service.complete(**body)["choices"][0])

    plain, greedy = answer(temperature=1.3), answer(temperature=0)
    assert plain != greedy
    for off in ({"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"top_k": 10**9}, {"min_p": 0}):
        assert answer(temperature=1.3, **off) == plain, off
    for one in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}):
        assert answer(temperature=1.3, **one) == greedy, one
    assert answer(temperature=1.3, seed=-1) == answer(temperature=1.3, seed=-1)


# -- B30 -----------------------------------------------------------------------------------------------------
SEA = {
    "prompt": "Write one sentence about the sea.",
    "temperature": 1.2,
    "max_tokens": 16,
    "ignore_eos": True,
}


def test_b30_choices_differ_and_a_seed_repeats_them(serve: Serve) -> None:
    """B30: n=8 gives 8 texts, the same list for the same seed, others without one; greedy gives equal ones."""
    service = serve()

    def texts(**fields: Any) -> list[str]:
        choices = service.complete(**{**SEA, "n": 8, **fields})["choices"]
        assert [choice["index"] for choice in choices] == list(range(8))
        return [choice["text"] for choice in choices]

    seeded = texts(seed=5)
    assert len(set(seeded)) >= 7
    assert texts(seed=5) == seeded
    first, second = texts(), texts()
    assert len({*first, *second, *seeded}) >= 22
    singles = service.at_once([lambda: service.complete(**SEA)["choices"][0]["text"]] * 8)
    assert len(set(singles)) >= 7
    assert len(set(texts(temperature=0))) == 1


def test_b30_a_choice_that_ends_early_does_not_end_the_others(serve: Serve) -> None:
    """B30: streams of n choices go on after the first has ended, each index with one end of its own."""
    service = serve()
    body = {**SEA, "n": 8, "seed": 5, "stop": [" the"], "max_tokens": 24}
    whole = service.ask(COMPLETIONS, body)["choices"]
    texts, ends = [""] * 8, []
    for chunk in service.stream(COMPLETIONS, body):
        for choice in chunk["choices"]:
            assert choice["index"] not in ends
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"]:
                ends.append(choice["index"])
    assert sorted(ends) == list(range(8))
    assert texts == [choice["text"] for choice in whole]
    assert len({len(text) for text in texts}) > 1  # some ended early


# -- B31 -----------------------------------------------------------------------------------------------------
def test_b31_which_tokens_each_penalty_counts(serve: Serve) -> None:
    """B31: presence and frequency count output only, repetition the prompt too; frequency grows, presence not."""
    service, prompt = serve(), "the same, the same, the same, the"
    first = service.text(prompt, max_tokens=1)
    assert first == " same"  # a token of the prompt
    assert service.text(prompt, max_tokens=1, presence_penalty=2) == first
    assert service.text(prompt, max_tokens=1, frequency_penalty=2) == first
    assert service.text(prompt, max_tokens=1, repetition_penalty=5) != first

    # A bias lifts one token far above all others: a presence penalty of 2, counted once, leaves it there; a
    # frequency penalty of 2 a time does not.
    bias = {"7042": 30}
    token = service.ask("/detokenize", {"tokens": [7042]})["prompt"]
    presence = service.text("Hi", max_tokens=30, logit_bias=bias, presence_penalty=2)
    frequency = service.text("Hi", max_tokens=30, logit_bias=bias, frequency_penalty=2)
    assert presence == token * 30
    assert 2 < frequency.count(token) < 28


RUNS = json.loads(Path(__file__).with_name("hf_repetition_penalty.json").read_text())["runs"]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["prompt"])
def test_b31_repetition_penalty_is_transformers(serve: Serve, run: dict[str, Any]) -> None:
    """B31: 40 greedy tokens with repetition_penalty 1.3 are those that transformers generated."""
    service = serve()
    fields = {"temperature": 0, "max_tokens": 40, "min_tokens": 40, "repetition_penalty": 1.3}
    tokens = service.complete(run["prompt"], logprobs=0, **fields)["choices"][0]["logprobs"]["tokens"]
    expected = [service.ask("/detokenize", {"tokens": [token_id]})["prompt"] for token_id in run["token_ids"]]
    first = next((i for i in range(40) if tokens[i] != expected[i]), None)
    # At a tie either is right, and what follows is another text.
    assert first is None or run["gaps"][first] < TIE, (first, tokens, expected)


# -- B34 -----------------------------------------------------------------------------------------------------
OUTSIDE: list[tuple[str, dict[str, Any]]] = [
    ("logit_bias", {"logit_bias": {"49152": 5}}),
    ("logit_bias", {"logit_bias": {"-1": 5}}),
    ("logit_bias", {"logit_bias": {"abc": 5}}),
    ("logit_bias", {"logit_bias": {"5": "x"}}),
    ("logit_bias", {"logit_bias": {"5": 1000}}),
    ("stop_token_ids", {"stop_token_ids": [49152], "min_tokens": 5}),
    ("stop_token_ids", {"stop_token_ids": [-1], "min_tokens": 5}),
    ("prompt", {"prompt": [49152]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": [2**63]}),
    ("prompt", {"prompt": [[1], ["a"]]}),
]


def test_b34_ids_outside_the_vocabulary_are_refused_and_hurt_nobody(serve: Serve) -> None:
    """B34: a 400 that names the field, while a stream beside them stays as it is alone."""
    service = serve()
    body = {"prompt": mixed(20, 34), "max_tokens": 40, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    alone = bits(service.complete(**body)["choices"][0])
    refusals = iter(OUTSIDE)

    def beside() -> Any:
        for chunk in service.stream(COMPLETIONS, body):
            for field, fields in [next(refusals, ("", {}))]:
                if field:
                    error = service.refusal(COMPLETIONS, {"prompt": "Hi", **fields})
                    assert error["param"] == field, (fields, error)
            yield chunk

    assert bits(joined(beside())) == alone
    assert next(refusals, None) is None  # all were sent while it ran


def test_b34_a_bias_of_100_forces_and_bans(serve: Serve) -> None:
    """B34: OpenAI's ends of the range."""
    service = serve()
    token = service.ask("/detokenize", {"tokens": [7042]})["prompt"]
    assert service.text("Hi", max_tokens=5, logit_bias={"7042": 100}) == token * 5
    forced_but_banned = service.text("Hi" + token * 20, max_tokens=5, logit_bias={"7042": -100})
    assert token not in forced_but_banned


# -- B36 -----------------------------------------------------------------------------------------------------
def test_b36_max_tokens_of_completions(serve: Serve) -> None:
    """B36: 1 and 2 are exact, null and absent are 16, 0 is refused without echo; streamed and not."""
    service = serve()
    for fields, number in (
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2}, 2),
        ({"max_tokens": None}, 16),
        ({}, 16),
    ):
        body = {"prompt": "The sea is", "temperature": 0, "ignore_eos": True, **fields}
        answer = service.complete(**body)
        assert answer["usage"]["completion_tokens"] == number
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["text"]
        streamed = service.streamed(**body)
        assert (streamed["text"], streamed["finish_reason"]) == (answer["choices"][0]["text"], "length")
    for stream in (False, True):
        body = {"prompt": "Hi", "max_tokens": 0, "stream": stream}
        assert service.refusal(COMPLETIONS, body)["param"] == "max_tokens"


def test_b36_max_tokens_of_chat(serve: Serve) -> None:
    """B36: both names work, the newer one wins, 0 is refused, null and absent mean up to the context."""
    service = serve()
    for fields, number in (
        ({"max_tokens": 1}, 1),
        ({"max_completion_tokens": 2}, 2),
        ({"max_completion_tokens": 3, "max_tokens": 1}, 3),
    ):
        answer = service.chat("Count to one hundred.", temperature=0, **fields)
        assert answer["usage"]["completion_tokens"] == number
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"]
    for name in ("max_tokens", "max_completion_tokens"):
        body = {"messages": [{"role": "user", "content": "Hi"}], name: 0}
        assert service.refusal(CHAT, body)["param"] == name
    for fields in ({}, {"max_tokens": None}):
        answer = service.chat("Say hi", temperature=0, **fields)  # ends by itself, after more than 16
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] > 16


def test_b36_zero_tokens_still_compute_the_whole_prompt(serve: Serve) -> None:
    """B36: max_tokens=0 with echo and logprobs runs all chunks of the prompt, and not a token more."""
    chunked, whole = serve("--max-num-batched-tokens", "16"), serve("--no-enable-prefix-caching")
    body = {"prompt": ids(100), "max_tokens": 0, "echo": True, "logprobs": 2}
    answer = chunked.complete(**body)
    assert answer["usage"]["completion_tokens"] == 0
    choice = answer["choices"][0]
    assert len(choice["logprobs"]["tokens"]) == 100
    assert choice["text"] == chunked.ask("/detokenize", {"tokens": ids(100)})["prompt"]
    assert choice["finish_reason"] == "length"
    assert bits(choice) == bits(whole.complete(**body)["choices"][0])
    streamed = chunked.streamed(**body)
    assert bits(streamed) == bits(choice)
