"""One streamed completion over a socket of its own, and when its parts came. Standard library only, so that the
client takes little of the processor that the server under test may share with it."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from chairlift.bench.http_stream import EventParser, HttpError, ResponseParser
from chairlift.errors import ConfigError

MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    tls: bool = False

    @classmethod
    def of(cls, base_url: str, path: str, headers: tuple[tuple[str, str], ...] = ()) -> Endpoint:
        """From http(s)://host[:port][/prefix]; raises ConfigError for anything else."""
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--base-url {base_url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url is {base_url!r}; it must be like http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/") + path, headers, tls)

    def message(self, method: str, body: bytes = b"") -> bytes:
        """A whole HTTP/1.1 request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
            *(("Content-Type: application/json", f"Content-Length: {len(body)}") if body else ()),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@dataclass(slots=True)
class Outcome:
    """What became of a request; times are seconds of `time.perf_counter`."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    sent_at: float = 0.0
    times: list[float] = field(default_factory=list)  # of each event that brought something
    texts: list[str] = field(default_factory=list)
    queued_s: float = 0.0  # waited here, for --max-concurrency
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.sent_at if self.times else 0.0

    @property
    def latency(self) -> float:
        """Seconds to the last token."""
        return self.times[-1] - self.sent_at if self.times else 0.0


async def stream(endpoint: Endpoint, body: dict[str, Any], timeout_s: float) -> Outcome:
    """Send a request with `"stream": true` and read its events to the end. Never raises: see `Outcome.error`."""
    outcome = Outcome()
    message = endpoint.message("POST", json.dumps(body).encode())
    outcome.sent_at = time.perf_counter()
    try:
        await _exchange(endpoint, message, _Events(outcome), timeout_s)
        if not outcome.times:
            outcome.error = "the stream ended without a token"
    except (OSError, HttpError, asyncio.TimeoutError) as error:
        outcome.error = str(error) or f"no answer within {timeout_s:g} s"
    if not outcome.output_tokens:
        outcome.output_tokens = len(outcome.times)  # a server that gives no usage: one token an event
    return outcome


async def fetch(endpoint: Endpoint, timeout_s: float) -> Any:
    """The JSON document of a GET. Raises OSError, HttpError, asyncio.TimeoutError, or ValueError for other text."""
    document = _Document()
    await _exchange(endpoint, endpoint.message("GET"), document, timeout_s)
    return json.loads(document.text)


class _Document(asyncio.Protocol):
    """Collects a whole answer; sets `done` at its end."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.text = b""
        self._response = ResponseParser()

    def data_received(self, data: bytes) -> None:
        try:
            body = self._response.feed(data)
            if self._response.status == 200:
                self.take(body)
            else:
                self.text += body
            if self._response.finished:
                self._end()
        except HttpError as error:
            self.fail(error)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.fail(HttpError(f"an answer in no known form: {error!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._response.close()
            self._end()
        except HttpError as error:
            self.fail(exc or error)

    def take(self, body: bytes) -> None:
        """A part of the body of a good answer."""
        self.text += body

    def fail(self, error: Exception) -> None:
        """Give up."""
        if not self.done.done():
            self.done.set_exception(error)

    def _end(self) -> None:
        status = self._response.status
        if status != 200:
            self.fail(HttpError(f"HTTP {status}: {self.text.decode('utf-8', 'replace'):.{MAX_ERROR_CHARS}}"))
        elif not self.done.done():
            self.done.set_result(None)


class _Events(_Document):
    """Notes the time of each event that brings something to an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome
        self._events = EventParser()
        self._complete = False

    def take(self, body: bytes) -> None:
        now = time.perf_counter()
        for event in self._events.feed(body):
            if event == b"[DONE]":
                self._complete = True
            else:
                self._enter(json.loads(event), now)

    def _enter(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            raise HttpError(f"error event: {json.dumps(event['error']):.{MAX_ERROR_CHARS}}")
        outcome = self._outcome
        for choice in event.get("choices") or ():
            text = choice["text"] if "text" in choice else choice.get("delta", {}).get("content")
            if text or choice.get("finish_reason"):
                outcome.times.append(now)
                outcome.texts.append(text or "")
        usage = event.get("usage")
        if usage:
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.output_tokens = usage.get("completion_tokens") or 0

    def _end(self) -> None:
        if self._response.status == 200 and not self._complete:
            self.fail(HttpError("the stream ended without [DONE]"))
        super()._end()


async def _exchange(endpoint: Endpoint, message: bytes, protocol: _Document, timeout_s: float) -> None:
    """Connect, send, and wait until the protocol has its answer."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if endpoint.tls else None

    async def run() -> None:
        transport, _ = await loop.create_connection(
            lambda: protocol, endpoint.host, endpoint.port, ssl=context
        )
        try:
            transport.write(message)
            await protocol.done
        finally:
            transport.abort()

    await asyncio.wait_for(run(), timeout_s)
