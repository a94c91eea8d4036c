"""Every error as OpenAI's document: {"error": {message, type, param, code}}."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from chairlift.errors import RequestError, ServerError

CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody is there to read it

logger = logging.getLogger(__name__)


def error_document(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """(HTTP status, document, headers) of any error. What we did not raise on purpose says nothing of its
    inside and is logged."""
    if isinstance(error, RequestError):
        return error.http_status, _document(error.message, error.error_type, error.param, error.code), {}
    if isinstance(error, ServerError):
        wait = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
        return error.http_status, _document(error.message, error.error_type), wait
    if isinstance(error, HTTPException):
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        return error.status_code, _document(str(error.detail), kind), dict(error.headers or {})
    logger.error("internal error", exc_info=error)
    return 500, _document("internal error; the server's log has the details", "server_error"), {}


def error_response(error: BaseException) -> Response:
    """The response for an error."""
    status, document, headers = error_document(error)
    return json_error(status, document, headers)


def json_error(status: int, document: dict[str, Any], headers: Mapping[str, str]) -> Response:
    """An error document; ASCII only, since what it quotes may be no valid text."""
    return Response(json.dumps(document), status, dict(headers), media_type="application/json")


def install(app: FastAPI) -> None:
    """Answer every error in this form."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = HTTPException(error.status_code, _where(request, error), error.headers)
        return error_response(error)

    for kind in (RequestError, ServerError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, handle)


def _where(request: Request, error: HTTPException) -> str:
    what = "no such route" if error.status_code == 404 else "this route has no such method"
    return f"{what}: {request.method} {request.url.path}"


def _document(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
