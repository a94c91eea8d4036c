"""Offering requests to a server: when each is sent, how many at once, and what it costs the client."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from chairlift.bench.stream_client import Endpoint, Outcome, stream
from chairlift.bench.workload import WorkItem

# Chat has no token ids: a prompt of n ids becomes n of these, each a token or so in any English vocabulary.
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "case")


@dataclass(frozen=True, slots=True)
class Traffic:
    """How requests are offered.

    Args:
        request_rate: a second; inf offers all at once.
        burstiness: shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier.
        self_timed: take the arrivals of the requests instead.
        max_concurrency: at most so many at a time; the others wait in the client.
        timeout_s: of one request.
    """

    request_rate: float = float("inf")
    burstiness: float = 1.0
    self_timed: bool = False
    max_concurrency: int | None = None
    timeout_s: float = 6 * 3600.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """What every request has: fields of the body; `chat` sends messages instead of token ids."""

    model: str
    chat: bool = False
    ignore_eos: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def body(self, item: WorkItem) -> dict[str, Any]:
        """The body of one request."""
        prompt: dict[str, Any] = {"prompt": item.prompt_token_ids}
        if self.chat:
            text = " ".join(_WORDS[token_id % len(_WORDS)] for token_id in item.prompt_token_ids)
            prompt = {"messages": [{"role": "user", "content": text}]}
        eos = {"ignore_eos": True} if self.ignore_eos else {}
        return {
            "model": self.model,
            **prompt,
            "max_tokens": item.max_tokens,
            **eos,
            **self.extra,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All outcomes, in the order of sending; `client_cpu_s` is processor time of this process meanwhile."""

    outcomes: list[Outcome]
    duration_s: float
    client_cpu_s: float


async def offer(
    endpoint: Endpoint,
    template: Template,
    items: Sequence[WorkItem],
    traffic: Traffic,
    on_finished: Callable[[], None] = lambda: None,
) -> LoadResult:
    """Send every request at its time and wait for all of them."""
    limit: AbstractAsyncContextManager[Any] = (
        nullcontext() if traffic.max_concurrency is None else asyncio.Semaphore(traffic.max_concurrency)
    )

    async def one(item: WorkItem) -> Outcome:
        arrived = time.perf_counter()
        async with limit:
            started = time.perf_counter()
            outcome = await stream(endpoint, template.body(item), traffic.timeout_s)
        outcome.queued_s = started - arrived
        outcome.prompt_tokens = outcome.prompt_tokens or len(item.prompt_token_ids)
        on_finished()
        return outcome

    cpu, start = time.process_time(), time.perf_counter()
    tasks = []
    for item, at in sorted(zip(items, arrivals(items, traffic), strict=True), key=lambda pair: pair[1]):
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one(item)))
    outcomes = list(await asyncio.gather(*tasks))
    return LoadResult(outcomes, time.perf_counter() - start, time.process_time() - cpu)


def arrivals(items: Sequence[WorkItem], traffic: Traffic) -> list[float]:
    """When each request is sent, in seconds after the start.

    The gaps are drawn, then scaled so that the last request comes exactly at number / rate, as vLLM does: the
    offered load is the same for every seed.
    """
    if traffic.self_timed:
        return [item.arrival_s for item in items]
    rate, shape = traffic.request_rate, traffic.burstiness
    if rate == float("inf"):
        return [0.0] * len(items)
    rng = random.Random(traffic.seed)
    gaps = [1.0 if shape == float("inf") else rng.gammavariate(shape, 1.0) for _ in items]
    times = list(accumulate(gaps))
    return [at / times[-1] * len(items) / rate for at in times]
