"""The application: routes, error handling and life, around an `AsyncFrontend` that is handed in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from chairlift.server import error_handlers
from chairlift.server.context import ServerContext
from chairlift.server.front_door import FrontDoor
from chairlift.server.openapi import describe_bodies
from chairlift.server.routes import chat, completions, health, metrics, models, tokenize

if TYPE_CHECKING:
    from chairlift.engine.frontend import AsyncFrontend
    from chairlift.tokenizer.base import Tokenizer
    from chairlift.tokenizer.chat_template import ChatTemplate

MAX_BODY_BYTES = 16 * 2**20
KEEPALIVE_S = 10.0


def create_app(
    frontend: AsyncFrontend,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    *,
    served_model_names: Sequence[str],
    version: str,
    api_keys: Sequence[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    keepalive_s: float = KEEPALIVE_S,
) -> FastAPI:
    """The OpenAI-compatible API.

    Args:
        frontend: started with the application unless it runs already; closed with it.
        chat_template: None makes chat requests a 400.
        served_model_names: what clients may call the model; answers without a name use the first.
        version: of Chairlift, for /version.
        api_keys: clients must send one of them; none lets everybody in.
        max_body_bytes: larger bodies are a 413.
        keepalive_s: seconds without an event after which a stream gets a comment.
    """
    if not served_model_names:
        raise ValueError("served_model_names must have at least one name")

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        if frontend.state == "starting":
            await frontend.start()
        try:
            yield
        finally:
            await frontend.close()

    app = FastAPI(title="Chairlift", version=version, lifespan=life, redirect_slashes=False)
    app.state.context = ServerContext(
        frontend, tokenizer, chat_template, tuple(served_model_names), version, keepalive_s
    )
    app.add_middleware(FrontDoor, api_keys=tuple(api_keys), max_body_bytes=max_body_bytes)
    error_handlers.install(app)
    describe_bodies(app)
    for routes in (completions, chat, models, tokenize, health, metrics):
        app.include_router(routes.router)
    return app
