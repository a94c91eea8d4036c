"""Checks that the completion endpoints share."""

from __future__ import annotations

from fastapi import Request

from chairlift.errors import UnsupportedParameterError
from chairlift.server.context import ServerContext
from chairlift.server.front_door import note_ignored_fields
from chairlift.server.protocol import Body, SamplingBody
from chairlift.server.unsupported import check_extra_fields


def check_fields(request: Request, context: ServerContext, body: Body, *, chat: bool) -> None:
    """Refuse fields that we know and do not support; log and list those that nobody knows."""
    unknown = check_extra_fields(body.model_extra or {}, chat=chat)
    context.log_once(unknown)
    note_ignored_fields(request, unknown)


def check_prompt_logprobs(body: SamplingBody) -> None:
    """A stream has no place for them."""
    if body.stream and body.prompt_logprobs is not None:
        raise UnsupportedParameterError(
            "prompt_logprobs cannot be streamed; use stream: false, or echo and logprobs",
            param="prompt_logprobs",
        )
