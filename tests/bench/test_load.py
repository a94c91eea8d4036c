"""The load generator sends what and when it says, and reports what really came, failures included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from chairlift.bench.load import LoadResult, Template, Traffic, arrivals, offer
from chairlift.bench.stream_client import Endpoint
from chairlift.bench.workload import WorkItem
from chairlift.errors import ConfigError

ITEMS = [WorkItem([5, 6, 7], 2, at) for at in (0.0, 0.02, 0.01)]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def token(text: str, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})


GOOD = HEAD + token("a") + token("b", "length") + event(USAGE) + b"data: [DONE]\n\n"


def run(
    answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]],
    traffic: Traffic | None = None,
    template: Template | None = None,
) -> LoadResult:
    """Offer ITEMS to a server that gives `answer` to each request's bytes."""

    async def main() -> LoadResult:
        handlers: list[asyncio.Task[None] | None] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.append(asyncio.current_task())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await answer(head + await reader.readexactly(length), writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint.of(f"http://127.0.0.1:{port}", "/v1/completions", (("X-Key", "k"),))
            load = await offer(endpoint, template or Template("m"), ITEMS, traffic or Traffic())
            await asyncio.gather(*filter(None, handlers))
            return load

    return asyncio.run(main())


def writes(data: bytes) -> Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


def test_every_request_is_counted_by_the_servers_usage() -> None:
    """Tokens come from the usage event, times from the events with text."""
    load = run(writes(GOOD))
    assert [(o.error, o.prompt_tokens, o.output_tokens, o.texts) for o in load.outcomes] == [
        (None, 3, 2, ["a", "b"])
    ] * 3
    assert all(0 < o.ttft <= o.latency < load.duration_s for o in load.outcomes)
    assert 0 < load.client_cpu_s < load.duration_s + 1


def test_the_body_is_what_a_server_expects() -> None:
    """Token ids, forced length, stream with usage; chat sends as many words in a message."""
    seen: list[bytes] = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(GOOD)

    run(answer, template=Template("m", extra={"temperature": 0}))
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Key: k\r\n" in head
    assert json.loads(body) == {
        "model": "m",
        "prompt": [5, 6, 7],
        "max_tokens": 2,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chat = Template("m", chat=True, ignore_eos=False).body(ITEMS[0])
    assert len(chat["messages"][0]["content"].split()) == 3
    assert "ignore_eos" not in chat


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull", "HTTP 429: full"),
        (b"HTTP/1.1 500 Oops\r\n\r\nno length", "HTTP 500: no length"),
        (HEAD + event({"error": {"message": "dead"}}), 'error event: {"message": "dead"}'),
        (HEAD + token("a") + event(USAGE), "the stream ended without [DONE]"),
        (HEAD + b"data: [DONE]\n\n", "the stream ended without a token"),
        (HEAD + b"data: {nonsense\n\n", "an answer in no known form"),
        (HEAD + event({"choices": [7]}), "an answer in no known form"),
        (b"", "closed before the end"),
        (b"SSH\r\n\r\n", "not an HTTP response"),
    ],
)
def test_failures_are_told(data: bytes, message: str) -> None:
    """Whatever goes wrong with a request is its error, in words, and never stops the others."""
    outcomes = run(writes(data)).outcomes
    assert len(outcomes) == 3
    assert all(message in (o.error or "") for o in outcomes), outcomes[0].error


def test_a_server_that_is_not_there_is_an_error() -> None:
    """A refused connection is told like any other failure."""
    load = asyncio.run(offer(Endpoint.of("http://127.0.0.1:1", "/v1"), Template("m"), ITEMS, Traffic()))
    assert all("127.0.0.1" in (o.error or "") for o in load.outcomes)


def test_a_silent_server_is_given_up() -> None:
    """After --request-timeout a request is an error."""

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)

    outcomes = run(answer, Traffic(timeout_s=0.1)).outcomes
    assert [o.error for o in outcomes] == ["no answer within 0.1 s"] * 3


def test_concurrency_is_limited() -> None:
    """With a limit of one, no two requests are at the server at once, and waiting here is not latency."""
    running = most = 0

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        writer.write(GOOD)

    outcomes = run(answer, Traffic(max_concurrency=1)).outcomes
    assert most == 1
    assert outcomes[2].queued_s > 0.09
    assert outcomes[2].sent_at - outcomes[0].sent_at > 0.09


def test_arrivals_have_the_rate_asked_for() -> None:
    """The last of n requests comes at n / rate; gaps vary less with a large shape and not at all with inf."""
    items = ITEMS * 10
    times = arrivals(items, Traffic(10.0, seed=3))
    assert times == sorted(times) == arrivals(items, Traffic(10.0, seed=3)) != arrivals(items, Traffic(10.0))
    assert times[-1] == pytest.approx(3.0)
    even = arrivals(items, Traffic(10.0, float("inf")))
    assert even == pytest.approx([(i + 1) / 10 for i in range(30)])
    assert arrivals(items, Traffic()) == [0.0] * 30


def test_self_timed_requests_are_sent_at_their_arrivals() -> None:
    """In order of arrival, not of the file, and not before their time."""
    assert arrivals(ITEMS, Traffic(self_timed=True)) == [0.0, 0.02, 0.01]
    outcomes = run(writes(GOOD), Traffic(self_timed=True)).outcomes
    sent = [o.sent_at - outcomes[0].sent_at for o in outcomes]
    assert sent == sorted(sent)
    assert sent[2] > 0.015


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:port", "http://[::1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    """The message names the flag and shows how one looks."""
    with pytest.raises(ConfigError, match="--base-url"):
        Endpoint.of(url, "/v1")


def test_a_url_may_have_a_prefix_and_tls() -> None:
    """https and its port, a path in front of the endpoint, an IPv6 host in brackets."""
    endpoint = Endpoint.of("https://api.example.org/openai/", "/v1/models")
    assert (endpoint.port, endpoint.tls, endpoint.path) == (443, True, "/openai/v1/models")
    assert b"Host: [::1]:8000\r\n" in Endpoint.of("http://[::1]:8000", "/v1").message("GET")
