"""The bytes of event streams, and what happens when a client or the engine goes away."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from chairlift.server import generation
from fakes import ScriptedRunner
from server.conftest import HI
from server.serving import Served, parse_events, raw_request, serving, wait_until

C, H = "/v1/completions", "/v1/chat/completions"


def read_until(sock: socket.socket, marker: bytes) -> bytes:
    data = b""
    while marker not in data:
        part = sock.recv(65536)
        assert part, data
        data += part
    return data


def test_the_bytes_of_a_stream(server: Served) -> None:
    """Every event is `data: {json}` and an empty line; [DONE] is the last; the body is chunked."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with raw_request(server.address, H, body) as sock:
        data = read_until(sock, b"0\r\n\r\n")
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    headers = head.lower().split(b"\r\n")
    assert b"transfer-encoding: chunked" in headers
    assert b"content-type: text/event-stream; charset=utf-8" in headers
    assert not any(line.startswith(b"content-length") for line in headers)
    events = b""
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        events, rest = events + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    chunks = parse_events(events.decode())
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello there!"
    assert events.endswith(b"}\n\ndata: [DONE]\n\n")


def test_keep_alive_comments() -> None:
    """A stream whose request is queued or paused gets comments, then its text."""
    with serving({"Hi": "Hello"}, paused=True, keepalive_s=0.05) as served:
        body = {"prompt": "Hi", "stream": True}
        with raw_request(served.address, C, body) as sock:
            data = read_until(sock, b": keep-alive\n\n")
            assert b"200 OK" in data
            assert b"data:" not in data
            served.call_in_loop(lambda: served.client.allow(2))
            data = read_until(sock, b'"text":"H')
            read_until(sock, b": keep-alive\n\n")  # paused again in the middle
            served.call_in_loop(served.client.resume)
            read_until(sock, b"[DONE]")


@pytest.mark.parametrize("prompt", ["Hi", ["Hi", "Hi"]])
def test_the_first_comment_is_as_soon_as_any(prompt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a first sign of life is part of the time without news, not added to it."""
    monkeypatch.setattr(generation, "FIRST_SIGN_S", 1.5)
    with serving({"Hi": "Hello"}, paused=True, keepalive_s=1.6) as served:
        start = time.monotonic()
        with raw_request(served.address, C, {"prompt": prompt, "stream": True}) as sock:
            read_until(sock, b": keep-alive\n\n")
        assert 1.5 < time.monotonic() - start < 3
        served.call_in_loop(served.client.resume)


def test_keep_alive_comments_of_a_batch() -> None:
    """The same for several prompts in one stream."""
    with serving({"Hi": "Hello"}, paused=True, keepalive_s=0.05) as served:
        body = {"prompt": ["Hi", "Hi"], "stream": True}
        with raw_request(served.address, C, body) as sock:
            read_until(sock, b": keep-alive\n\n")
            served.call_in_loop(served.client.resume)
            assert read_until(sock, b"[DONE]").count(b'"finish_reason":"stop"') == 2


def test_the_head_leaves_before_the_first_token() -> None:
    """A queued stream's client knows within about a second that it was accepted."""
    with serving({"Hi": "Hello"}, paused=True) as served:
        with raw_request(served.address, C, {"prompt": "Hi", "stream": True}) as sock:
            start = time.monotonic()
            assert b"200 OK" in read_until(sock, b"\r\n\r\n")
            assert time.monotonic() - start < 5
        served.call_in_loop(served.client.resume)
        served.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"prompt": ["a", "b", "c"]}])
def test_a_client_that_goes_away_frees_its_requests(stream: bool, fields: dict[str, Any]) -> None:
    """B62: while queued, streaming or not, for every choice and prompt, and nothing else is disturbed."""
    with serving({"Hi": "Hello"}, paused=True, engine={"max_num_seqs": 1}) as served:
        body = {"prompt": "x", "max_tokens": 500, "stream": stream, **fields}
        socks = [raw_request(served.address, C, body) for _ in range(10)]
        expected = 30 if fields else 10
        wait_until(lambda: served.frontend.num_unfinished == expected)
        served.call_in_loop(lambda: served.client.allow(3))
        for sock in socks:
            sock.close()
        wait_until(lambda: served.frontend.num_unfinished == 0)
        served.call_in_loop(served.client.resume)
        assert served.complete("Hi")["choices"][0]["text"] == "Hello"
        served.assert_idle()
        assert served.frontend.metrics.finish_reasons["abort"] == expected


def test_a_client_that_goes_away_mid_stream_stops_the_work() -> None:
    """B62: generation stops within a step or two of the disconnect."""
    with serving(engine={"max_model_len": 100_000, "num_kv_blocks": 10_000}) as served:
        with raw_request(served.address, C, {"prompt": "x", "max_tokens": 50_000, "stream": True}) as sock:
            read_until(sock, b'"text":"')
        wait_until(lambda: served.frontend.num_unfinished == 0)
        generated = served.runner.num_tokens
        time.sleep(0.1)
        assert served.runner.num_tokens <= generated + 1
        assert generated < 50_000
        served.assert_idle()


def test_many_clients_that_go_away_leave_nothing_behind() -> None:
    """B62, B13: after many aborted requests no task, request or block remains."""
    import asyncio

    with serving() as served:
        served.complete("x", max_tokens=1)
        tasks = served.call_in_loop(lambda: len(asyncio.all_tasks()))
        for round_number in range(60):
            body = {"prompt": "x" * 40, "max_tokens": 400, "stream": round_number % 2 == 0, "n": 2}
            with raw_request(served.address, C, body):
                time.sleep(0.002 * (round_number % 5))
        served.assert_idle()
        wait_until(lambda: served.call_in_loop(lambda: len(asyncio.all_tasks())) <= tasks)
        engine = served.client.engine
        assert engine is not None
        frame = served.complete("y", max_tokens=1)
        assert frame["usage"]["completion_tokens"] == 1
        stats = served.call_in_loop(engine.stats)
        assert stats.num_free_blocks == stats.num_kv_blocks


def test_an_engine_that_dies_is_a_pause() -> None:
    """P5: the stream goes on, after a restart, with the text it would have had."""
    runners = iter([ScriptedRunner(raise_at=8), ScriptedRunner(), ScriptedRunner()])
    with serving() as reference:
        expected = reference.complete("sea", seed=3, max_tokens=40)["choices"][0]["text"]
    with serving(paused=True) as served:
        from fakes import build

        served.client._make_engine = lambda: build(next(runners)).engine
        served.call_in_loop(lambda: served.client.kill("test"))
        served.call_in_loop(served.client.resume)
        chunks = served.stream(C, {"prompt": "sea", "seed": 3, "max_tokens": 40})
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
        assert served.frontend.metrics.engine_restarts >= 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_is_gone_for_good_ends_every_request(stream: bool) -> None:
    """B61: a stream ends with an error event, a document with a 503; nobody waits for ever."""
    with serving(paused=True, keepalive_s=0.05) as served:
        with raw_request(served.address, C, {"prompt": "x", "stream": stream, "max_tokens": 9}) as sock:
            wait_until(lambda: served.frontend.num_unfinished == 1)
            if stream:
                read_until(sock, b"keep-alive")
            served.call_in_loop(lambda: served.frontend._die("test"))
            data = read_until(sock, b"engine_dead_error")
        if stream:
            event = data[data.index(b"data: ") :].splitlines()[0]
            assert json.loads(event.removeprefix(b"data: "))["error"]["type"] == "engine_dead_error"
        else:
            assert data.startswith(b"HTTP/1.1 503")


def test_errors_of_one_prompt_end_the_batch() -> None:
    """A batch whose engine goes away ends with one error event and no [DONE]."""
    with serving(paused=True, keepalive_s=0.05) as served:
        with raw_request(served.address, C, {"prompt": ["a", "b"], "stream": True}) as sock:
            read_until(sock, b"keep-alive")
            served.call_in_loop(lambda: served.frontend._die("test"))
            data = read_until(sock, b"0\r\n\r\n")
        assert data.count(b'"error"') == 1
        assert b"[DONE]" not in data


def test_a_slow_reader_loses_nothing() -> None:
    """B25: a client that reads late gets every character, in fewer chunks."""
    with serving(
        {"Hi": "Hello there! " * 500}, engine={"max_model_len": 8000, "num_kv_blocks": 600}
    ) as served:
        with raw_request(served.address, C, {"prompt": "Hi", "stream": True, "max_tokens": 7000}) as sock:
            wait_until(lambda: served.frontend.num_unfinished == 0, 30)
            data = read_until(sock, b"[DONE]").decode()
        texts = [
            json.loads(line[6:])["choices"][0]["text"]
            for line in data.splitlines()
            if line.startswith("data: {")
        ]
        assert "".join(texts) == "Hello there! " * 500


def test_a_request_body_that_never_ends(server: Served) -> None:
    """A client that goes away in the middle of its body leaves nothing behind."""
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    assert server.complete("Hi")["choices"][0]["text"] == "Hello there!"
    assert server.chat("Hi")["usage"]["prompt_tokens"] > 0
    assert HI
