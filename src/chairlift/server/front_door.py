"""What happens to every request before it meets a route: an id, the API key, a bound on the body.

Plain ASGI, since Starlette's middleware class would copy every chunk of every stream through a queue.
"""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift.errors import AuthenticationError, RequestError
from chairlift.server.error_handlers import error_response

OPEN_PATHS = frozenset({"/health", "/version", "/metrics", "/ping"})  # probes have no key
IGNORED_FIELDS_HEADER = "x-chairlift-ignored-fields"
MAX_HEADER_CHARS = 1000

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class BodyTooLargeError(RequestError):
    """The body is larger than any request needs."""

    http_status = 413


class FrontDoor:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str], max_body_bytes: int) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = _request_id(headers.get("x-request-id"))
        state["response_headers"] = {"x-request-id": state["request_id"]}
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(state["response_headers"])
            await send(message)

        try:
            self._check_key(scope["path"], headers)
            self._check_length(headers)
            # A HEAD is a GET whose body the HTTP server leaves out.
            inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            await self._app(inner, self._bounded(receive), send_with_headers)
        except Exception as error:
            if started:
                raise
            await error_response(error)(scope, receive, send_with_headers)

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in OPEN_PATHS:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        # Headers come decoded as Latin-1. Every key is compared, in constant time: timing tells nothing.
        if not sum(hmac.compare_digest(given, known) for known in self._keys):
            what = "wrong" if given else "missing: send Authorization: Bearer KEY"
            raise AuthenticationError(f"the API key is {what}", code="invalid_api_key")

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        received = 0

        async def bounded_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise self._too_large()
            return message

        return bounded_receive

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body is larger than {self._max_body_bytes} bytes")


def request_id_of(request: Request) -> str:
    """The id that the client gave, or ours."""
    request_id: str = request.state.request_id
    return request_id


def note_ignored_fields(request: Request, names: Sequence[str]) -> None:
    """List fields that nobody knows in a header of the response."""
    if not names:
        return
    shown = ", ".join(re.sub(r"[^!-+\--~]", "?", name[:100]) for name in names)
    headers: dict[str, Any] = request.state.response_headers
    headers[IGNORED_FIELDS_HEADER] = shown[:MAX_HEADER_CHARS]


def _request_id(given: str | None) -> str:
    return given if given is not None and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
