"""GET /health and /version."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from chairlift.server.context import context_of

router = APIRouter()


@router.get("/health")
@router.get("/ping", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    """200 while requests are answered; 503 while the engine starts, is being brought back, or is gone."""
    state = context_of(request).frontend.state
    return JSONResponse({"status": state}, status_code=200 if state == "ready" else 503)


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """Chairlift's version."""
    return {"version": context_of(request).version}
