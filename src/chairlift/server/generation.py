"""Running one HTTP request: its prompts submitted together, its deltas merged, its answer written.

Whatever ends a request early (a client that goes away, an error in one prompt, shutdown) leaves the
`submitted` block and thereby aborts every stream in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chairlift.engine.frontend import AsyncFrontend
from chairlift.engine.stream import RequestStream
from chairlift.engine.types import CompletionDelta
from chairlift.errors import InvalidParameterError, RequestError
from chairlift.sampling_params import SamplingParams
from chairlift.server.context import ServerContext
from chairlift.server.disconnect import until_disconnect
from chairlift.server.sse import KEEP_ALIVE, NOTHING_YET, EventStream, done, event
from chairlift.server.writers import Writer, usage_document

FIRST_SIGN_S = 1.0  # how long a stream's head waits for a first delta, so that early errors keep their status


@dataclass(slots=True)
class Call:
    """A validated request: what to submit, and how to answer."""

    writer: Writer
    params: Sequence[SamplingParams]  # per prompt
    stream: bool
    include_usage: bool
    prompt_field: str  # what the API calls the prompt: errors about it name this


def check_number(frontend: AsyncFrontend, num_prompts: int, n: int, prompt_field: str) -> None:
    """Refuse a batch that could not even be queued on an idle server; to be called before any work on it.

    Raises:
        InvalidParameterError: there are too many choices.
    """
    info = frontend.info
    total, limit = num_prompts * n, info.max_num_seqs + info.max_num_waiting
    if total > limit:
        raise InvalidParameterError(
            f"{num_prompts} prompts with n={n} are {total} choices; the limit is {limit} "
            "(--max-num-seqs + --max-num-waiting)",
            param="n" if num_prompts == 1 else prompt_field,
        )


async def answer(request: Request, context: ServerContext, call: Call) -> Response:
    """Run a call; a stream's response runs it when it is sent.

    Raises:
        RequestError, ServerError: it was refused, or failed.
        ClientDisconnect: the client went away.
    """
    if call.stream:
        return EventStream(_events(context, call))
    document = await until_disconnect(request.receive, _document(context.frontend, call))
    return Response(msgspec.json.encode(document), media_type="application/json")


@asynccontextmanager
async def submitted(frontend: AsyncFrontend, call: Call) -> AsyncIterator[list[RequestStream]]:
    """One stream per prompt. If one prompt is refused, none is left running."""
    writer, streams = call.writer, []
    async with AsyncExitStack() as stack:
        for index, (prompt, params) in enumerate(zip(writer.prompts, call.params, strict=True)):
            request_id = writer.id if len(writer.prompts) == 1 else f"{writer.id}-{index}"
            try:
                stream = frontend.submit(prompt.token_ids, params, request_id=request_id)
            except RequestError as error:
                if error.param == "prompt":
                    error.param = call.prompt_field
                raise
            streams.append(await stack.enter_async_context(stream))
        yield streams


async def _document(frontend: AsyncFrontend, call: Call) -> dict[str, Any]:
    """The whole answer, once every choice has ended."""
    async with submitted(frontend, call) as streams:
        choices = []
        for prompt, stream in enumerate(streams):
            whole: dict[int, CompletionDelta] = {}
            async for delta in stream:
                known = whole.get(delta.index)
                whole[delta.index] = delta if known is None else _joined(known, delta)
            choices += [(prompt, whole[index]) for index in sorted(whole)]
        return call.writer.document(choices, streams)


def _joined(first: CompletionDelta, second: CompletionDelta) -> CompletionDelta:
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=None if second.logprobs is None else [*(first.logprobs or ()), *second.logprobs],
    )


async def _events(context: ServerContext, call: Call) -> AsyncGenerator[bytes, None]:
    """The bytes of an event stream."""
    writer = call.writer
    head = writer.head(writer.chunk_kind)
    tail: dict[str, Any] = {"usage": None} if call.include_usage else {}
    async with submitted(context.frontend, call) as streams:
        pause = first_pause = context.keepalive_s
        if not await streams[0].wait(FIRST_SIGN_S):
            yield NOTHING_YET
            first_pause = max(0.0, pause - FIRST_SIGN_S)
        async with aclosing(_merged(streams, pause, first_pause)) as deltas:
            async for prompt, delta in deltas:
                if delta is None:
                    yield KEEP_ALIVE
                    continue
                choices = writer.chunk_choices(prompt, delta, streams[prompt])
                if choices:
                    yield b"".join(event({**head, "choices": [choice], **tail}) for choice in choices)
        if call.include_usage:
            yield event({**head, "choices": [], "usage": usage_document([s.usage for s in streams])})
        yield done()


async def _merged(
    streams: Sequence[RequestStream], pause_s: float, first_pause_s: float
) -> AsyncGenerator[tuple[int, CompletionDelta | None], None]:
    """(prompt, delta) of all streams as they come; a None after each `pause_s` without any, the first after
    `first_pause_s`."""
    if len(streams) > 1:
        async with aclosing(_merged_tasks(streams, pause_s, first_pause_s)) as deltas:
            async for item in deltas:
                yield item
        return
    stream, timeout = streams[0], first_pause_s
    while True:
        has_news, timeout = await stream.wait(timeout), pause_s
        if not has_news:
            yield 0, None
            continue
        try:
            delta = await anext(stream)
        except StopAsyncIteration:
            return
        yield 0, delta


async def _merged_tasks(
    streams: Sequence[RequestStream], pause_s: float, first_pause_s: float
) -> AsyncGenerator[tuple[int, CompletionDelta | None], None]:
    """A task per stream, each holding one delta at most; the streams join what comes meanwhile."""
    queue: asyncio.Queue[tuple[int, CompletionDelta | Exception | None]] = asyncio.Queue(maxsize=1)

    async def pump(prompt: int, stream: RequestStream) -> None:
        end = None
        try:
            async for delta in stream:
                await queue.put((prompt, delta))
        except Exception as error:
            end = error
        await queue.put((prompt, end))

    tasks = [asyncio.ensure_future(pump(*numbered)) for numbered in enumerate(streams)]
    getter = asyncio.ensure_future(queue.get())
    unfinished, timeout = len(streams), first_pause_s
    try:
        while unfinished:
            await asyncio.wait((getter,), timeout=timeout)
            timeout = pause_s
            if not getter.done():
                yield 0, None
                continue
            prompt, item = getter.result()
            getter = asyncio.ensure_future(queue.get())
            if isinstance(item, Exception):
                raise item
            if item is None:
                unfinished -= 1
            else:
                yield prompt, item
    finally:
        for task in (*tasks, getter):
            task.cancel()
        await asyncio.gather(*tasks, getter, return_exceptions=True)
