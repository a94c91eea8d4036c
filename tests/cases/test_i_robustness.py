"""Section I of the bug cases: robustness. What kills engines has servers of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from cases.conftest import Serve
from cases.service import COMPLETIONS, Service, answered, bits, joined, mixed, read_until, wait_for

QUEUE = ("--max-num-seqs", "8", "--max-num-waiting", "56", "--num-kv-blocks", "512")  # 64 unfinished at most
ONE_SEAT = ("--max-num-seqs", "1", "--num-kv-blocks", "512")


@pytest.fixture
def own_service(default_model: Path, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Makes a server that no other case uses; killed at the end, however it ended."""
    with ExitStack() as stack:

        def start(*flags: str) -> Service:
            service = Service(default_model, flags, tmp_path / "server")
            stack.callback(service.process.wait)
            stack.callback(service.process.kill)
            stack.callback(service.http.close)
            return service

        yield start


# -- promise P5 and B61 --------------------------------------------------------------------------------------
def test_a_kill_under_sixteen_streams_changes_no_bit(own_service: Callable[..., Service]) -> None:
    """P5: the engine gets SIGKILL in the middle of 16 streams; ids, logprobs and texts are those without it."""
    service = own_service("--num-kv-blocks", "512", "--max-num-batched-tokens", "64")
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9, "repetition_penalty": 1.2},
        {"temperature": 1.0},  # the front end draws a seed, and keeps it
    ]
    bodies = [
        {
            "prompt": mixed(4 + 5 * i, 600 + i),
            "max_tokens": 12 + i,
            "ignore_eos": True,
            "logprobs": 2,
            **kinds[i % 4],
        }
        for i in range(16)
    ]
    expected = service.at_once([lambda body=body: service.streamed(**body) for body in bodies])
    pid = service.engine_pid
    progress = [0] * 16

    def stream(i: int) -> dict[str, Any]:
        def counted() -> Iterator[Any]:
            for chunk in service.stream(COMPLETIONS, bodies[i]):
                progress[i] += 1
                yield chunk

        return joined(counted())

    def kill() -> None:
        wait_for("the streams to be on their way", lambda: sum(map(bool, progress)) >= 12)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    got = service.at_once([lambda i=i: stream(i) for i in range(16)])
    killer.join()
    assert service.metrics()["engine_restarts_total"] == 1
    assert service.engine_pid not in (None, pid)
    for i, (answer, reference) in enumerate(zip(got, expected, strict=True)):
        assert len(answer["logprobs"]["tokens"]) == 12 + i
        if i % 4 != 3:
            assert bits(answer) == bits(reference), i
    service.assert_alive()
    service.close()


def test_b61_health_tells_of_a_dead_engine_and_requests_survive(own_service: Callable[..., Service]) -> None:
    """B61: with the engine killed, /health is 503 until it is back, and who came before or meanwhile is answered."""
    service = own_service("--num-kv-blocks", "256")
    with ExitStack() as stack:
        body = {"prompt": mixed(20, 61), "max_tokens": 90, "ignore_eos": True}
        socks = [stack.enter_context(service.sent(COMPLETIONS, body)) for _ in range(3)]
        wait_for("the requests to run", lambda: service.metrics()["generation_tokens_total"] > 20)
        os.kill(service.engine_pid or 0, signal.SIGKILL)
        wait_for("/health to tell", lambda: service.health == 503, 2)
        socks.append(stack.enter_context(service.sent(COMPLETIONS, body)))
        answers = [answered(sock) for sock in socks]
    assert [status for status, _ in answers] == [200] * 4
    assert {document["usage"]["completion_tokens"] for _, document in answers} == {90}
    wait_for("the engine to be back", lambda: service.health == 200)
    assert "the engine died: the engine process has ended (killed by SIGKILL); " in service.log()
    assert "the engine is back after " in service.log()
    service.assert_alive()
    service.close()


def test_b61_a_stuck_engine_is_replaced_within_the_stated_time(own_service: Callable[..., Service]) -> None:
    """B61: an engine that is stopped in the middle of its work is replaced after --step-timeout; nothing is lost."""
    service = own_service("--num-kv-blocks", "256", "--step-timeout", "2")
    body = {"prompt": mixed(20, 62), "max_tokens": 40, "ignore_eos": True, "temperature": 0, "logprobs": 1}
    expected = bits(service.streamed(**body))
    pid = service.engine_pid
    assert pid is not None

    def stopped_on_the_way() -> Iterator[Any]:
        for number, chunk in enumerate(service.stream(COMPLETIONS, body)):
            if number == 5:
                os.kill(pid, signal.SIGSTOP)
            yield chunk

    assert bits(joined(stopped_on_the_way())) == expected
    assert service.metrics()["engine_restarts_total"] == 1
    assert service.engine_pid != pid
    service.assert_alive()
    service.close()


def test_b61_an_engine_that_keeps_dying_ends_the_server(own_service: Callable[..., Service]) -> None:
    """B61: requests in flight get an error instead of waiting for ever, then the process ends with a code of 1."""
    service = own_service("--num-kv-blocks", "256")
    results: list[bytes] = []

    def client() -> None:
        body = {"prompt": mixed(8, 63), "max_tokens": 200, "ignore_eos": True, "stream": True}
        with service.sent(COMPLETIONS, body) as sock:
            results.append(read_until(sock, b"engine_dead_error"))

    clients = [threading.Thread(target=client) for _ in range(3)]
    for thread in clients:
        thread.start()
    killed: set[int] = set()

    def kill_and_ask() -> bool:
        pid = service.engine_pid
        if pid is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return service.process.poll() is not None

    wait_for("the server to give up", kill_and_ask, 60)
    for thread in clients:
        thread.join()
    assert service.process.returncode == 1
    assert len(results) == 3
    event = results[0][results[0].rindex(b'{"error"') :].splitlines()[0]
    assert json.loads(event)["error"]["type"] == "engine_dead_error"
    with pytest.raises(httpx.ConnectError):
        service.http.get("/health")


# -- B62 -----------------------------------------------------------------------------------------------------
def test_b62_clients_that_hang_up_leave_no_work_behind(serve: Serve) -> None:
    """B62: queued and running requests of clients that are gone stop at once, and the next one is served."""
    service = serve(*ONE_SEAT)
    body = {"prompt": mixed(8, 70), "max_tokens": 2000, "ignore_eos": True}
    before = service.metrics()
    with service.sent(COMPLETIONS, {**body, "stream": True}, "b62-first") as first:
        read_until(first, b"data: ", 3)
        with ExitStack() as stack:
            for i in range(10):
                stack.enter_context(service.sent(COMPLETIONS, body, f"b62-queued-{i}"))
            wait_for("all to be queued", lambda: service.metrics()["num_requests_waiting"] == 10)
        wait_for("the queue to be empty", lambda: service.metrics()["num_requests_waiting"] == 0)
        assert service.metrics()["num_requests_running"] == 1
    service.assert_idle(5)
    after = service.metrics()
    assert after["finished:abort"] - before["finished:abort"] == 11
    assert after["generation_tokens_total"] - before["generation_tokens_total"] < 500  # of 22,000
    assert not any(service.shares(f"b62-queued-{i}") for i in range(10))  # none ever boarded
    assert service.complete("Hi", max_tokens=4)["usage"]["completion_tokens"] == 4
    assert service.metrics()["generation_tokens_total"] == after["generation_tokens_total"] + 4


def test_b62_a_prefill_stops_when_its_client_is_gone(serve: Serve) -> None:
    """B62: hanging up between two chunks of a long prompt ends it, streaming or not."""
    service = serve("--max-num-batched-tokens", "64", "--num-kv-blocks", "512", "--max-num-seqs", "16")
    for stream in (False, True):
        name = f"b62-prefill-{stream}"
        with service.sent(COMPLETIONS, {"prompt": mixed(4000, 71), "max_tokens": 1, "stream": stream}, name):
            wait_for("the prefill to begin", lambda name=name: service.shares(name))
        service.assert_idle(5)
        assert sum(service.shares(name).values()) < 4000


@pytest.mark.slow
def test_b62_nothing_is_kept_over_many_rounds(serve: Serve) -> None:
    """B62: the server's memory is flat over 200 rounds of clients that go away."""
    service = serve(*ONE_SEAT)

    def round_of(number: int) -> None:
        body = {"prompt": mixed(40, 700 + number % 20), "max_tokens": 500, "n": 2, "stream": number % 2 == 0}
        with service.sent(COMPLETIONS, body), service.sent(COMPLETIONS, body):
            wait_for("the requests to be seen", lambda: not service.is_idle())

    for number in range(50):
        round_of(number)
    service.assert_idle()
    rss = service.rss()
    for number in range(150):
        round_of(number)
    service.assert_idle()
    assert service.rss() - rss < 16 * 2**20


# -- B64 -----------------------------------------------------------------------------------------------------
def burst(service: Service, number: int, body: dict[str, Any]) -> list[tuple[int, Any, Any]]:
    """(status, Retry-After, body) of requests that are all sent before any answer is read."""
    answers = []
    with ExitStack() as stack:
        socks = [stack.enter_context(service.sent(COMPLETIONS, body)) for _ in range(number)]
        for sock in socks:
            data = b""
            while part := sock.recv(65536):
                data += part
            head, _, document = data.partition(b"\r\n\r\n")
            lines = head.decode().lower().split("\r\n")
            retry = [line for line in lines if line.startswith("retry-after:")]
            answers.append((int(lines[0].split()[1]), retry, json.loads(document)))
    return answers


def test_b64_a_burst_is_answered_or_refused_at_once(serve: Serve) -> None:
    """B64: 300 at once with room for 64: each gets a 200, or a 429 with Retry-After; memory stays bounded."""
    service = serve(*QUEUE)
    rss = service.rss()
    answers = burst(service, 300, {"prompt": "Hi", "max_tokens": 4})
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 64
    for status, retry, document in answers:
        if status == 429:
            assert len(retry) == 1
            assert document["error"]["type"] == "overloaded_error"
    service.assert_idle()
    assert service.rss() - rss < 128 * 2**20


def test_b64_choices_count_each(serve: Serve) -> None:
    """B64: n=64 fills the room that 64 requests would, n=65 can never be queued."""
    service = serve(*QUEUE)
    body = {"prompt": "Hi", "max_tokens": 30, "ignore_eos": True}
    assert service.refusal(COMPLETIONS, {**body, "n": 65})["param"] == "n"
    with service.sent(COMPLETIONS, {**body, "n": 64}):
        wait_for("all choices to be there", lambda: service.metrics()["num_requests_waiting"] >= 40)
        response = service.post(COMPLETIONS, {**body, "n": 64})
        assert response.status_code == 429
        assert float(response.headers["retry-after"]) >= 1


def test_b64_few_file_descriptors_do_not_end_the_accept_loop(own_service: Callable[..., Service]) -> None:
    """B64: with 128 file descriptors 300 clients are served one after the other, and the server lives on."""
    service = own_service(*QUEUE, "--log-level", "error")
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (128, 128))
    answers = burst(service, 300, {"prompt": "Hi", "max_tokens": 1})
    assert {status for status, _, _ in answers} <= {200, 429}
    service.assert_alive()
