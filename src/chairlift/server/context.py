"""What every route needs, made once per application."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from chairlift.errors import NotFoundError

if TYPE_CHECKING:
    from chairlift.engine.frontend import AsyncFrontend
    from chairlift.tokenizer.base import Tokenizer
    from chairlift.tokenizer.chat_template import ChatTemplate

logger = logging.getLogger(__name__)

MAX_REMEMBERED_FIELDS = 1000  # names of unknown fields that were logged


@dataclass(slots=True)
class ServerContext:
    """The engine's front end, the tokenizer and the settings of the API."""

    frontend: AsyncFrontend
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    model_names: Sequence[str]  # the first is what answers call the model
    version: str
    keepalive_s: float
    created: int = field(default_factory=lambda: int(time.time()))
    logged_fields: set[str] = field(default_factory=set)

    def model_name(self, asked: str | None) -> str:
        """The name to answer with; no name at all means the only model there is.

        Raises:
            NotFoundError: a model that this server does not serve.
        """
        if not asked:
            return self.model_names[0]
        if asked not in self.model_names:
            raise NotFoundError(
                f"no model {asked!r}; this server has {', '.join(self.model_names)} (--served-model-name)",
                param="model",
                code="model_not_found",
            )
        return asked

    def log_once(self, names: Sequence[str]) -> None:
        """Tell the operator, once per name, about fields that nobody knows."""
        room = MAX_REMEMBERED_FIELDS - len(self.logged_fields)
        new = [name for name in names if name not in self.logged_fields][:room]
        if new:
            self.logged_fields.update(new)
            logger.warning("unknown request fields are ignored: %s", ", ".join(map(ascii, new)))


def context_of(request: Request) -> ServerContext:
    """The context of the application that got this request."""
    context: ServerContext = request.app.state.context
    return context
