"""Server-sent events: the bytes, and a response that stops its source when the client goes away."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chairlift.server.disconnect import until_disconnect
from chairlift.server.error_handlers import error_document

KEEP_ALIVE = b": keep-alive\n\n"
NOTHING_YET = b""  # makes the response's head leave, with no event


def event(document: Any) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def done() -> bytes:
    """The event that ends a stream."""
    return b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends what `events` yields. An error before the first item is an ordinary error response; a later one is
    an event with OpenAI's error document, the last of the stream."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source ends or the client is gone."""
        with suppress(ClientDisconnect):
            await until_disconnect(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(head)
            await _send_part(send, first)
            try:
                async for part in events:
                    await _send_part(send, part)
            except Exception as error:
                _, document, _ = error_document(error)
                await _send_part(send, event(document))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
