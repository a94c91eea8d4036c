"""Request bodies in the OpenAPI document, since routes parse them themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `kind`."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": kind.model_json_schema()}},
        }
    }
