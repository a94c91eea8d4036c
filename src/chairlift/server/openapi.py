"""Request bodies in the OpenAPI document, since routes parse them themselves.

The schemas are made when somebody asks for the document: making them at import costs a tenth of the start-up.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from chairlift.server.protocol import Body, ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

BODIES: dict[str, type[Body]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def describe_bodies(app: FastAPI) -> None:
    """Make the application's OpenAPI document say what its POST routes take."""
    without_bodies = app.openapi

    def openapi() -> dict[str, Any]:
        document = without_bodies()
        for path, kind in BODIES.items():
            document["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": kind.model_json_schema()}},
            }
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
