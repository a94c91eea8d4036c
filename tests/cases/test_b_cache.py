"""Section B of the bug cases: KV blocks and the prefix cache."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from cases.conftest import Serve
from cases.service import COMPLETIONS, Service, bits, ids, mixed, wait_for


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 48])
def test_b10_a_wholly_cached_prompt_still_computes_its_last_token(serve: Serve, n: int) -> None:
    """B10: cold, warm and parallel runs of a prompt equal those without a cache; one token is always computed."""
    body = {"prompt": ids(n, shift=n), "max_tokens": 8, "temperature": 0, "logprobs": 2}
    expected = bits(serve("--no-enable-prefix-caching").complete(**body)["choices"][0])
    service = serve()
    answers = [service.complete(**body) for _ in range(2)]
    answers += service.at_once([lambda: service.complete(**body)] * 3)
    for answer in answers:
        assert bits(answer["choices"][0]) == expected
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] <= n - 1
    # Full blocks of the prompt but for the block of the last token, which has to be computed.
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == (n - 1) // 16 * 16


@pytest.mark.parametrize("budget", ["256", "16"])
def test_b11_prompt_logprobs_are_whole_whatever_the_cache(serve: Serve, budget: str) -> None:
    """B11: 40 entries, the first null, equal to the cold run's, chunked or warm, in echo's and vLLM's form."""
    cold = serve("--no-enable-prefix-caching")
    service = serve() if budget == "256" else serve("--max-num-batched-tokens", budget)
    prompt = mixed(40, 21)
    echo = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 5}
    plain = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 5}
    expected = bits(cold.complete(**echo)["choices"][0])
    by_id = cold.complete(**plain)["choices"][0]["prompt_logprobs"]
    assert len(by_id) == 40
    assert by_id[0] is None

    warm_up = service.complete(prompt, max_tokens=1)
    assert warm_up["usage"]["completion_tokens"] == 1
    again = service.complete(prompt, max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32  # it is warm
    assert bits(service.complete(**echo)["choices"][0]) == expected
    service.complete([*prompt[:32], 504, 505], max_tokens=1)  # another prompt with the same blocks
    assert bits(service.complete(**echo)["choices"][0]) == expected
    choice = service.complete(**plain)["choices"][0]
    assert choice["prompt_logprobs"] == by_id
    tokens, logprobs = expected[2], expected[3]
    assert len(tokens) == 41
    assert logprobs[0] is None
    assert None not in logprobs[1:]


def test_b13_no_block_leaks_however_requests_end(serve: Serve) -> None:
    """B13: requests cut while queued, in prefill, while decoding and while preempted give every block back."""
    service = serve("--num-kv-blocks", "40", "--max-num-seqs", "8")
    rng = random.Random(13)
    before = service.metrics()
    for round_number in range(8):
        _cut_a_crowd(service, rng, round_number)
    for round_number in range(3):
        _cut_while_preempted(service, round_number)
    service.assert_idle()

    after = service.metrics()
    assert after["finished:abort"] - before["finished:abort"] > 40
    assert after["num_preemptions_total"] - before["num_preemptions_total"] >= 3
    steps = len(service.steps())
    whole = service.complete(mixed(400, 500), max_tokens=240, ignore_eos=True)  # as large as the pool
    assert whole["usage"]["completion_tokens"] == 240
    late = {row[0] for step in service.steps()[steps:] for row in step["rows"]}
    assert not any("b13" in name for name in late)  # nothing was computed for those that were cut
    service.assert_clean_log()


def _cut_a_crowd(service: Service, rng: random.Random, round_number: int) -> None:
    """Twelve requests of every kind; half are cut after some steps, the others a little later."""
    with ExitStack() as stack:
        socks = []
        for i in range(12):
            body = {
                "prompt": mixed(rng.choice((8, 60, 200, 400)), 200 + 12 * round_number + i),
                "max_tokens": rng.choice((1, 20, 100)),
                "ignore_eos": True,
                "n": rng.choice((1, 1, 1, 3)),
                "stream": rng.random() < 0.5,
            }
            socks.append(stack.enter_context(service.sent(COMPLETIONS, body, f"b13-{round_number}-{i}")))
        _steps_go_by(service, round_number)
        for sock in rng.sample(socks, 6):
            sock.close()
        _steps_go_by(service, 2)


def _cut_while_preempted(service: Service, round_number: int) -> None:
    """Eight requests that outgrow the pool, all cut as soon as one has had to give its blocks back."""
    start = service.metrics()["num_preemptions_total"]
    with ExitStack() as stack:
        for i in range(8):
            body = {"prompt": mixed(64, 400 + 8 * round_number + i), "max_tokens": 128, "ignore_eos": True}
            stack.enter_context(service.sent(COMPLETIONS, body, f"b13-preempted-{round_number}-{i}"))
        wait_for("a preemption", lambda: service.metrics()["num_preemptions_total"] > start)


def _steps_go_by(service: Service, number: int) -> None:
    def count() -> float:
        return service.metrics()["iteration_tokens_total_count"]

    target = count() + number
    wait_for("steps to go by", lambda: count() >= target or service.is_idle())
