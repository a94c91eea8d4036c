"""Section M of the bug cases: metrics and determinism."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from cases.conftest import Serve
from cases.service import COMPLETIONS, Service, bits, mixed, read_until, wait_for

# -- B76 -----------------------------------------------------------------------------------------------------


def test_b76_counters_add_up(serve: Serve) -> None:
    """B76: after ends of every kind, with preemption, gauges are idle by themselves and every total is explained."""
    service = serve("--num-kv-blocks", "40", "--max-num-seqs", "8")
    before = service.metrics()
    completed = service.at_once(
        [
            lambda i=i: service.complete(mixed(48, 760 + i), max_tokens=40, ignore_eos=True, temperature=0)
            for i in range(20)
        ]
    )
    for i in range(10):
        body = {"prompt": mixed(16, 790 + i), "max_tokens": 400, "ignore_eos": True, "stream": True}
        with service.sent(COMPLETIONS, body) as sock:
            read_until(sock, b"data: ", 3)
    for _ in range(5):
        service.refusal(COMPLETIONS, {"prompt": "Hi", "temperature": -1})
    _abort_in_the_queue(service, 5)
    service.assert_idle(2)

    after = service.metrics()
    moved = {name: after[name] - before.get(name, 0) for name in after}
    assert moved["num_preemptions_total"] > 0
    assert sum(answer["usage"]["completion_tokens"] for answer in completed) == 800
    assert moved["finished:length"] == 20
    assert moved["finished:abort"] == 10 + 5 + 8  # the 8 that the queue formed behind
    assert moved["finished:error"] == moved["finished:stop"] == 0
    ended = sum(moved[f"finished:{reason}"] for reason in ("stop", "length", "abort", "error"))
    assert moved["e2e_request_latency_seconds_count"] == ended == 43
    assert (
        moved["time_to_first_token_seconds_count"] == 20 + 10 + 8
    )  # of preempted ones once, of queued ones none
    # Documented: work for requests that are aborted later counts.
    assert moved["prompt_tokens_total"] == 20 * 48 + 10 * 16 + 5 * 8 + 8 * 16
    between = moved["inter_token_latency_seconds_count"]
    assert moved["generation_tokens_total"] == moved["time_to_first_token_seconds_count"] + between
    assert moved["generation_tokens_total"] >= 800 + 10 * 2


def _abort_in_the_queue(service: Service, number: int) -> None:
    """Requests that wait behind eight running ones until their clients, then those of the eight, go away."""
    with ExitStack() as running, ExitStack() as queued:
        for i in range(8):
            body = {"prompt": mixed(16, 810 + i), "max_tokens": 60, "ignore_eos": True, "stream": True}
            sock = running.enter_context(service.sent(COMPLETIONS, body))
            read_until(sock, b"data: ", 1)
        for i in range(number):
            queued.enter_context(service.sent(COMPLETIONS, {"prompt": mixed(8, 830 + i), "max_tokens": 400}))
        wait_for("a queue", lambda: service.metrics()["num_requests_waiting"] == number)
        queued.close()
        wait_for("no queue", lambda: service.metrics()["num_requests_waiting"] == 0)


# -- B77 -----------------------------------------------------------------------------------------------------
LENGTHS = [5, 6, 8, 10, 13, 16, 17, 23, 31, 48, 64, 90, 130, 180, 300, 800]
OUTPUT = 16


@pytest.fixture(scope="module")
def lone() -> list[Any]:
    """The answers of each prompt alone, filled by the first case that asks."""
    return []


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--no-enable-prefix-caching",),
        ("--max-num-batched-tokens", "64", "--num-kv-blocks", "512", "--max-num-seqs", "16"),
        ("--max-num-batched-tokens", "4096", "--threads", "1"),
    ],
    ids=["default", "budget 64", "budget 4096, one thread"],
)
def test_b77_neighbours_change_no_bit(serve: Serve, lone: list[Any], flags: tuple[str, ...]) -> None:
    """B77: 16 greedy prompts at once, in reverse, and among noise, have the ids and logprobs they have alone."""
    service = serve(*flags)
    bodies = [
        {
            "prompt": mixed(length, 770 + i),
            "max_tokens": OUTPUT,
            "temperature": 0,
            "logprobs": 2,
            "ignore_eos": True,
        }
        for i, length in enumerate(LENGTHS)
    ]
    if not lone:
        lone += [bits(service.complete(**body)["choices"][0]) for body in bodies]
    assert len(set(lone)) == 16

    def together(order: list[dict[str, Any]]) -> list[Any]:
        answers = service.at_once([lambda body=body: service.complete(**body) for body in order])
        return [bits(answer["choices"][0]) for answer in answers]

    start = len(service.steps())
    assert together(bodies) == lone
    assert together(bodies[::-1])[::-1] == lone
    assert max(step["stats"]["num_running"] for step in service.steps()[start:]) >= 12


@pytest.mark.slow
def test_b77_noise_changes_no_bit(serve: Serve, lone: list[Any]) -> None:
    """B77: nor do noisy neighbours of all kinds that come and go."""
    service = serve()
    quiet = [
        {"prompt": mixed(length, 870 + i), "max_tokens": 12, "temperature": 0, "logprobs": 2}
        for i, length in enumerate(LENGTHS[:8])
    ]
    alone = [bits(service.complete(**body)["choices"][0]) for body in quiet]
    noise = [
        {
            "prompt": mixed(5 + 7 * i, 900 + i),
            "max_tokens": 4 + i % 9,
            "temperature": 1.2,
            "top_k": 50,
            "n": 1 + i % 2,
        }
        for i in range(24)
    ]
    mixture = [
        body for i, loud in enumerate(noise) for body in ([loud, quiet[i]] if i < len(quiet) else [loud])
    ]
    answers = service.at_once([lambda body=body: service.complete(**body) for body in mixture])
    together = [
        bits(answer["choices"][0]) for body, answer in zip(mixture, answers, strict=True) if body in quiet
    ]
    assert together == alone


def test_b77_equal_requests_have_one_answer(serve: Serve) -> None:
    """B77: the same prompt eight times at once gives one text, with one set of logprobs."""
    service = serve()
    body = {"prompt": mixed(50, 888), "max_tokens": 16, "temperature": 0, "logprobs": 2}
    answers = service.at_once([lambda: bits(service.complete(**body)["choices"][0])] * 8)
    assert len(set(answers)) == 1
