"""P5 on a real (tiny, random) model: a killed engine process changes no id and no logprob."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from chairlift import factory
from chairlift.config import EngineConfig
from chairlift.engine.client import ProcessClient
from chairlift.engine.frontend import AsyncFrontend
from chairlift.sampling_params import SamplingParams
from fakes import run_async, until


async def outputs(config: EngineConfig, *, kill_after: int | None) -> Any:
    """(choices and prompt logprobs of 16 streams, number of restarts)"""
    client = ProcessClient("chairlift.factory:build_engine", config)
    frontend = AsyncFrontend(client, factory.open_front(config).tokenizer)
    await frontend.start()
    try:
        streams = [
            frontend.submit(
                [20 + (i * 7 + j) % 40 for j in range(5 + 3 * i)],
                SamplingParams(
                    max_tokens=40,
                    seed=i,
                    temperature=1.0,
                    logprobs=2,
                    frequency_penalty=0.5,
                    prompt_logprobs=i % 2,
                ),
                request_id=f"r{i}",
            )
            for i in range(16)
        ]
        tasks = [asyncio.create_task(stream.collect()) for stream in streams]
        if kill_after is not None:
            await until(lambda: frontend.metrics.generation_tokens >= kill_after)
            assert frontend._client.pid is not None
            os.kill(frontend._client.pid, signal.SIGKILL)
            await until(lambda: frontend.metrics.engine_restarts == 1)
        results = await asyncio.gather(*tasks)
        return [(result, stream.prompt_logprobs) for result, stream in zip(results, streams, strict=True)], (
            frontend.metrics.engine_restarts
        )
    finally:
        await frontend.close()


@pytest.mark.parametrize("kill_after", [1, 150])
def test_p5_a_killed_engine_changes_no_bit(tiny_model: Path, kill_after: int) -> None:
    """Sixteen sampled streams with penalties and logprobs are `==` with and without a SIGKILL under them."""
    config = EngineConfig.from_flags(
        model=str(tiny_model), max_num_seqs=8, max_num_batched_tokens=32, max_model_len=128, threads=1
    )
    calm, none = run_async(outputs(config, kill_after=None), timeout=60)
    killed, once = run_async(outputs(config, kill_after=kill_after), timeout=60)
    assert (none, once) == (0, 1)
    assert killed == calm
