"""`RequestStream`: what the caller of `AsyncFrontend.submit` holds while its request runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from chairlift.core.messages import TokenLogprobs
from chairlift.engine.outputs import OutputProcessor
from chairlift.engine.types import CompletionDelta, CompletionOutput
from chairlift.errors import ChairliftError


@dataclass(slots=True)
class Usage:
    """Token counts of one request; the prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache (of choice 0)


class RequestStream:
    """An asynchronous iterator over the deltas of all choices of one request.

    Use it as an asynchronous context manager: leaving the block early, for whatever reason, aborts the request
    and so frees its blocks within a step. A cancelled `anext` or `wait` aborts too, so never wrap those in
    `asyncio.wait_for`: `wait(timeout)` is the way to wait for a while.

    A slow consumer loses nothing: deltas of a choice that wait are joined into one. One consumer at a time.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        outputs: list[OutputProcessor],
        on_abort: Callable[[RequestStream], None],
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.usage = Usage(prompt_tokens=len(prompt_token_ids))
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        """Entry i is about prompt token i; the first is None. Complete before the first delta."""
        self._outputs = outputs
        self._on_abort = on_abort
        self._unfinished = len(outputs)
        self._pending: dict[int, CompletionDelta] = {}
        self._error: ChairliftError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- for the consumer ------------------------------------------------------------------------------------
    @property
    def finished(self) -> bool:
        """True when every choice has ended; deltas may still wait to be read."""
        return self._unfinished == 0 or self._error is not None

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until `anext` would not block; False when `timeout` seconds passed first."""
        if self._pending or self.finished:
            return True
        if self._waiter is not None:
            raise RuntimeError(f"two consumers of request {self.request_id}; a stream has one")
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, self._wake)  # cheaper than asyncio.wait
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return bool(self._pending) or self.finished

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> CompletionDelta:
        """The next delta.

        Raises:
            StopAsyncIteration: every choice has ended.
            EngineDeadError: the engine is gone for good, or this request brought it down repeatedly.
            RequestError, ServerError: the engine refused the request.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._unfinished == 0:
                raise StopAsyncIteration
            await self.wait()
        return self._pending.pop(next(iter(self._pending)))

    async def collect(self) -> list[CompletionOutput]:
        """Wait for the end and return every choice, by index; raises like `anext`."""
        async for _ in self:
            pass
        return [output.result() for output in self._outputs]

    async def abort(self) -> None:
        """Give up: the engine frees the blocks in its next step. Harmless when already finished."""
        self._abort()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abort()

    # -- for the front end -----------------------------------------------------------------------------------
    def deliver(self, delta: CompletionDelta) -> None:
        """Hand over what is new of one choice."""
        self.usage.completion_tokens += len(delta.token_ids)
        waiting = self._pending.get(delta.index)
        if waiting is None:
            self._pending[delta.index] = delta
        else:
            _join(waiting, delta)
        if delta.finish_reason is not None:
            self._unfinished -= 1
        self._wake()

    def fail(self, error: ChairliftError) -> None:
        """End the stream with an error, after the deltas that wait."""
        if not self.finished:
            self._error = error
            self._wake()

    def _abort(self) -> None:
        if not self.finished:
            self._on_abort(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _join(first: CompletionDelta, second: CompletionDelta) -> None:
    """Append `second` to `first`, both of one choice."""
    first.text += second.text
    first.token_ids += second.token_ids
    if first.logprobs is not None and second.logprobs is not None:
        first.logprobs += second.logprobs
    first.finish_reason = second.finish_reason
    first.stop_reason = second.stop_reason
