"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from chairlift.server.context import ServerContext, context_of

router = APIRouter()


@router.get("/v1/models")
@router.get("/v1/models/", include_in_schema=False)  # no name is not a model's name
async def list_models(request: Request) -> dict[str, Any]:
    """The one model, under each of its names."""
    context = context_of(request)
    return {"object": "list", "data": [_card(context, name) for name in context.model_names]}


@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    context = context_of(request)
    return _card(context, context.model_name(name))


def _card(context: ServerContext, name: str) -> dict[str, Any]:
    info = context.frontend.info
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "chairlift",
        "root": info.model_name,
        "parent": None,
        "max_model_len": info.max_model_len,
    }
