"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from chairlift.errors import InvalidParameterError
from chairlift.sampling_params import SamplingParams
from chairlift.server.context import ServerContext, context_of
from chairlift.server.front_door import request_id_of
from chairlift.server.generation import Call, answer, check_number
from chairlift.server.prompts import read_chat
from chairlift.server.protocol import ChatRequest, read_body
from chairlift.server.routes.shared import check_fields, check_prompt_logprobs
from chairlift.server.writers import ChatWriter

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer the last of a list of messages."""
    context = context_of(request)
    body = await read_body(request, ChatRequest)
    return await answer(request, context, await _call(request, context, body))


async def _call(request: Request, context: ServerContext, body: ChatRequest) -> Call:
    model = context.model_name(body.model)
    check_fields(request, context, body, chat=True)
    body.check_stream_options()
    check_prompt_logprobs(body)
    params = _params(body)  # before any work on the messages
    check_number(context.frontend, 1, params.n, "messages")
    prompt = await read_chat(
        context,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
    )
    writer = ChatWriter(
        id=f"chatcmpl-{request_id_of(request)}",
        model=model,
        prompts=[prompt],
        params=params,
        tokenizer=context.tokenizer,
        wants_prompt_logprobs=body.prompt_logprobs is not None,
    )
    return Call(
        writer,
        params=[params],
        stream=bool(body.stream),
        include_usage=body.include_usage,
        prompt_field="messages",
    )


def _params(body: ChatRequest) -> SamplingParams:
    """Sampling parameters; without a maximum an answer may fill the context."""
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(body, name)
    if max_tokens is not None and max_tokens < 1:
        raise InvalidParameterError(f"{name} is {max_tokens}; it must be at least 1", param=name)
    return body.sampling_params(
        max_tokens=max_tokens, logprobs=body.num_top_logprobs, prompt_logprobs=body.prompt_logprobs
    )
