"""POST /v1/completions."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from chairlift.errors import InvalidParameterError, UnsupportedParameterError
from chairlift.sampling_params import SamplingParams
from chairlift.server.context import ServerContext, context_of
from chairlift.server.front_door import request_id_of
from chairlift.server.generation import Call, answer, check_number
from chairlift.server.prompts import read_prompts, split_prompts
from chairlift.server.protocol import DEFAULT_MAX_TOKENS, CompletionRequest, read_body
from chairlift.server.routes.shared import check_fields, check_prompt_logprobs
from chairlift.server.writers import CompletionWriter

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continue a text, or each of a list of texts or token ids."""
    context = context_of(request)
    body = await read_body(request, CompletionRequest)
    return await answer(request, context, await _call(request, context, body))


async def _call(request: Request, context: ServerContext, body: CompletionRequest) -> Call:
    model = context.model_name(body.model)
    check_fields(request, context, body, chat=False)
    _check_combinations(body)
    params = _params(body)  # before any work on the prompt
    items = split_prompts(body.prompt)
    check_number(context.frontend, len(items), params.n, "prompt")
    prompts = await read_prompts(context, items, add_special_tokens=body.add_special_tokens is not False)
    rooms = [context.frontend.info.max_model_len - len(prompt.token_ids) for prompt in prompts]
    writer = CompletionWriter(
        id=f"cmpl-{request_id_of(request)}",
        model=model,
        prompts=prompts,
        params=params,
        tokenizer=context.tokenizer,
        echo=bool(body.echo),
        wants_prompt_logprobs=body.prompt_logprobs is not None,
    )
    return Call(
        writer,
        params=_params_by_room(params, rooms),
        stream=bool(body.stream),
        include_usage=body.include_usage,
        prompt_field="prompt",
    )


def _params_by_room(params: SamplingParams, rooms: list[int]) -> list[SamplingParams]:
    """Parameters of each prompt. Without max_tokens the default is generated, up to the end of the context:
    `rooms` says how many tokens that is away."""
    if params.max_tokens is not None:
        return [params] * len(rooms)
    limits = [max(1, min(DEFAULT_MAX_TOKENS, room), params.min_tokens) for room in rooms]
    with_limit = {limit: replace(params, max_tokens=limit) for limit in set(limits)}
    return [with_limit[limit] for limit in limits]


def _params(body: CompletionRequest) -> SamplingParams:
    echoed = body.logprobs if body.echo else None
    return body.sampling_params(
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=echoed if body.prompt_logprobs is None else body.prompt_logprobs,
    )


def _check_combinations(body: CompletionRequest) -> None:
    body.check_stream_options()
    check_prompt_logprobs(body)
    if body.max_tokens == 0 and not body.echo:
        raise InvalidParameterError(
            "max_tokens is 0; it must be at least 1, or 0 with echo: true", param="max_tokens"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedParameterError(
            f"best_of is {body.best_of} and n is {body.n or 1}; best_of other than n is not supported",
            param="best_of",
        )
    both = (body.logprobs, body.prompt_logprobs)
    if body.echo and None not in both and both[0] != both[1]:
        raise InvalidParameterError(
            "with echo, logprobs covers the prompt too: prompt_logprobs must be equal to it or absent",
            param="prompt_logprobs",
        )
