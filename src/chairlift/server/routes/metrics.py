"""GET /metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from chairlift.server.context import context_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms of this server."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    registry = context_of(request).frontend.metrics.registry
    return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})
