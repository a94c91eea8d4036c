"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from chairlift.errors import InvalidParameterError
from chairlift.server.context import ServerContext, context_of
from chairlift.server.prompts import encode, read_chat
from chairlift.server.protocol import DetokenizeRequest, TokenizeRequest, read_body
from chairlift.server.routes.shared import check_fields

MAX_DETOKENIZE_IDS = 1 << 20  # beyond any model's context
THREAD_IDS = 4096  # more are worked on beside the event loop, so that streams flow on

T = TypeVar("T")

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> dict[str, Any]:
    """Ids of a prompt, or of what the chat template makes of messages."""
    context = context_of(request)
    body = await read_body(request, TokenizeRequest)
    context.model_name(body.model)
    check_fields(request, context, body, chat=body.messages is not None)
    ids = await _ids(context, body)
    strings = None
    if body.return_token_strs:
        strings = await _beside_if_many(len(ids), lambda: [context.tokenizer.token_text(i) for i in ids])
    return {
        "count": len(ids),
        "max_model_len": context.frontend.info.max_model_len,
        "tokens": ids,
        "token_strs": strings,
    }


@router.post("/detokenize")
async def detokenize(request: Request) -> dict[str, str]:
    """Text of at most MAX_DETOKENIZE_IDS ids, special tokens included."""
    context = context_of(request)
    body = await read_body(request, DetokenizeRequest)
    context.model_name(body.model)
    check_fields(request, context, body, chat=False)
    tokens = _listed(body.tokens)

    def work() -> str:
        _check_tokens(tokens, context.frontend.info.vocab_size)
        return context.tokenizer.decode(tokens, skip_special_tokens=False)

    return {"prompt": await _beside_if_many(len(tokens), work)}


async def _beside_if_many(count: int, work: Callable[[], T]) -> T:
    return work() if count <= THREAD_IDS else await asyncio.to_thread(work)


def _listed(tokens: Any) -> list[Any]:
    if not isinstance(tokens, list):
        raise InvalidParameterError("tokens must be a list of token ids", param="tokens")
    if len(tokens) > MAX_DETOKENIZE_IDS:
        raise InvalidParameterError(
            f"tokens has {len(tokens)} ids, more than {MAX_DETOKENIZE_IDS}", param="tokens"
        )
    return tokens


def _check_tokens(tokens: list[Any], vocab_size: int) -> None:
    for token_id in tokens:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise InvalidParameterError(
                f"tokens has {ascii(token_id)[:100]}, which is no id in [0, {vocab_size})", param="tokens"
            )


async def _ids(context: ServerContext, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParameterError("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return (await encode(context, [body.prompt], add_special_tokens=special))[0]
    prompt = await read_chat(
        context,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
    )
    return prompt.token_ids
