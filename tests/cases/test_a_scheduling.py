"""Section A of the bug cases: scheduling."""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cases.conftest import Serve
from cases.service import COMPLETIONS, Service, answered, bits, ids, launch, mixed, wait_for

SMALL_POOL = ("--num-kv-blocks", "40", "--max-num-seqs", "8")


def test_b01_an_impossible_context_is_refused_at_start(default_model: Path, tmp_path: Path) -> None:
    """B01: a --max-model-len that the pool cannot hold ends the start, with both numbers and the knob."""
    log = tmp_path / "stderr"
    arguments = [str(default_model), "--num-kv-blocks", "16", "--max-model-len", "1024"]
    process = launch(arguments, log)
    assert process.wait(60) == 2
    message = log.read_text()
    assert "1024" in message
    assert "256" in message
    assert "--max-model-len" in message


def test_b01_what_can_never_run_never_waits(serve: Serve) -> None:
    """B01: at the edges of the pool a prompt is answered or refused at once, and a small one beside it runs."""
    service = serve("--num-kv-blocks", "16")
    for n in (400, 256, 241, 240):
        big, small = service.at_once(
            [
                lambda n=n: service.post(COMPLETIONS, {"prompt": ids(n), "max_tokens": 8}),
                lambda: service.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 8}),
            ]
        )
        assert small.status_code == 200
        assert big.status_code == (200 if n + 8 <= 256 else 400)
        if big.status_code == 400:
            assert str(n) in big.json()["error"]["message"]
            assert big.json()["error"]["code"] in ("context_length_exceeded", "kv_cache_too_small")
        service.assert_idle()


def test_b03_a_long_prefill_does_not_stop_a_stream(serve: Serve) -> None:
    """B03: while a long prompt is computed a stream gets a token in every step, and a late short one answers."""
    service = serve("--max-num-batched-tokens", "64", "--num-kv-blocks", "512", "--max-num-seqs", "16")
    answers: list[Any] = []

    def late() -> None:
        with service.sent(COMPLETIONS, {"prompt": mixed(1000, 3), "max_tokens": 1}, "b03-long") as long:
            wait_for("the long prefill to begin", lambda: service.shares("b03-long"))
            answers.append(service.complete("Hi", max_tokens=4, request_id="b03-short"))
            answers.append(answered(long))

    others = threading.Thread(target=late)
    body = {"prompt": mixed(8, 4), "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    for number, _ in enumerate(service.stream(COMPLETIONS, body, "b03-stream")):
        if number == 10:
            others.start()
    others.join()

    stream, long, short = (service.shares(f"b03-{name}") for name in ("stream", "long", "short"))
    assert len(long) > 12  # many chunks, or the case shows nothing
    busy = range(min(long), min(max(long), max(stream)))
    assert len(busy) > 10
    assert [step for step in busy if stream.get(step) != 1] == []
    assert max(short) < max(long)
    assert answers[0]["usage"]["completion_tokens"] == 4
    assert answers[1][0] == 200


def test_b03_a_flood_of_short_ones_does_not_stop_a_long_prefill(serve: Serve) -> None:
    """B03, second half: short requests keep coming, each is answered soon, and the long prompt finishes too."""
    service = serve("--max-num-batched-tokens", "64", "--num-kv-blocks", "512", "--max-num-seqs", "16")
    finished = threading.Event()
    answers: list[Any] = []

    def flood(lane: int) -> None:
        for round_number in itertools.count():
            if finished.is_set():
                break
            prompt = mixed(40, 100 + 50 * lane + round_number % 50)
            service.complete(prompt, max_tokens=2, request_id=f"b03-flood-{lane}-{round_number}")

    lanes = [threading.Thread(target=flood, args=(lane,)) for lane in range(3)]
    with service.sent(COMPLETIONS, {"prompt": mixed(700, 5), "max_tokens": 1}, "b03-slow") as long:
        wait_for("the long prefill to begin", lambda: service.shares("b03-slow"))
        for lane in lanes:
            lane.start()
        answers.append(answered(long))
        finished.set()
        for lane in lanes:
            lane.join()

    assert answers[0][0] == 200
    slow = service.shares("b03-slow")
    steps = service.steps()[min(slow) : max(slow)]
    others = [row for step in steps for row in step["rows"] if "b03-flood" in row[0]]
    assert len(others) > 20  # it was a flood
    assert all(slow[index] >= 16 for index in range(min(slow), max(slow)))  # its floor, in every step


def test_b05_preemption_changes_nothing_and_loses_nothing(serve: Serve) -> None:
    """B05: eight streams in a pool for five end like lone requests, to the bit, and send each token once."""
    service, reference = serve(*SMALL_POOL), serve()
    bodies = [
        {"prompt": mixed(64, salt), "max_tokens": 48, "min_tokens": 48, "temperature": 0, "logprobs": 2}
        for salt in range(8)
    ]
    before = service.metrics()
    streamed = service.at_once([lambda body=body: service.streamed(**body) for body in bodies])
    moved = service.metrics()["num_preemptions_total"] - before["num_preemptions_total"]
    assert moved > 0
    for body, choice in zip(bodies, streamed, strict=True):
        alone = reference.complete(**body)
        assert alone["usage"]["completion_tokens"] == 48
        assert len(choice["logprobs"]["tokens"]) == 48
        assert bits(choice) == bits(alone["choices"][0])


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": mixed(600, 11)},
    "penalty": {"prompt": mixed(300, 12), "repetition_penalty": 1.2},
    "logprobs": {"prompt": mixed(40, 13), "logprobs": 5},
    "bias": {"prompt": mixed(30, 14), "logit_bias": {"7042": 4, "260": -100}},
    "seed": {"prompt": mixed(20, 15), "temperature": 1.0, "seed": 7},
}
ORDERS = [
    ("plain", "penalty", "logprobs", "bias", "seed"),
    ("seed", "bias", "logprobs", "penalty", "plain"),
    ("logprobs", "plain", "seed", "penalty", "bias"),
    ("penalty", "seed", "plain", "bias", "logprobs"),
    ("bias", "logprobs", "penalty", "plain", "seed"),
]


@pytest.fixture(scope="module")
def solo() -> dict[str, Any]:
    """Answers of each kind alone, filled by the first case that asks."""
    return {}


def _mixture(service: Service, order: tuple[str, ...], tag: str) -> dict[str, Any]:
    """All kinds, each arriving while the ones before are in prefill."""
    with ExitStack() as stack:
        socks = {}
        for kind in order:
            body = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **KINDS[kind]}
            socks[kind] = stack.enter_context(service.sent(COMPLETIONS, body, f"{tag}-{kind}"))
        return {kind: _result(answered(sock)) for kind, sock in socks.items()}


def _result(answer: tuple[int, Any]) -> Any:
    status, document = answer
    assert status == 200, document
    choice = document["choices"][0]
    return choice["text"], choice["logprobs"], document["usage"]["completion_tokens"]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_b09_options_do_not_depend_on_who_came_first(
    serve: Serve, solo: dict[str, Any], order: tuple[str, ...]
) -> None:
    """B09: penalties, logprobs, bias and seeds that join a batch mid-prefill equal their lone runs."""
    service = serve("--max-num-batched-tokens", "64", "--num-kv-blocks", "512", "--max-num-seqs", "16")
    for kind in KINDS:
        if kind not in solo:
            solo.update(_mixture(service, (kind,), f"b09-alone-{kind}"))
    tag = "b09-" + "".join(kind[0] for kind in order)
    assert _mixture(service, order, tag) == solo
    crowded = max(sum(tag in row[0] for row in step["rows"]) for step in service.steps())
    assert crowded >= 3
    assert service.health == 200
