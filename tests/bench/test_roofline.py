"""The bound of a workload counts the work that a run of it does, and no more than its least reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.bench.roofline import workload_bound
from chairlift.bench.step import runner_of
from chairlift.bench.workload import WorkItem
from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.types import EngineRequest
from chairlift.factory import build_engine
from chairlift.ops.interface import MachineLimits, OpWork
from chairlift.sampling_params import SamplingParams

LIMITS = MachineLimits(flops=1e9, int8_ops=4e9, read_bytes=1e8)
ITEMS = [WorkItem([5] * prompt, answer) for prompt, answer in ((1, 1), (90, 3), (40, 20), (7, 6))]


@pytest.fixture(params=["f32", "int8"])
def engine(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Engine]:
    flags = {"max_num_batched_tokens": 32, "max_model_len": 256, "kv_cache_memory": 32 << 20}
    engine = build_engine(
        EngineConfig.from_flags(
            model=str(tiny_model), compute_dtype=request.param, enable_prefix_caching=False, **flags
        )
    )
    if engine.info.backend == "reference":
        pytest.skip("needs the native module")
    yield engine
    engine.close()


def work_of_a_run(engine: Engine) -> list[OpWork]:
    runner = runner_of(engine)
    runner.profile = []
    for i, item in enumerate(ITEMS):
        params = SamplingParams(temperature=0.0, max_tokens=item.max_tokens, ignore_eos=True)
        engine.add_request(EngineRequest(str(i), item.prompt_token_ids, params, seed=0))
    while engine.has_unfinished():
        engine.step()
    return [work for work, _ in runner.profile]


def test_arithmetic_is_that_of_any_schedule(engine: Engine) -> None:
    """The engine's own run, in chunks beside each other, does exactly as many operations."""
    bound = workload_bound(engine, ITEMS, LIMITS)
    work = work_of_a_run(engine)
    assert bound.flops == pytest.approx(sum(each.flops for each in work), rel=1e-9)
    assert bound.int8_ops == pytest.approx(sum(each.int8_ops for each in work), rel=1e-9)
    assert bound.num_output_tokens == 30


def test_no_run_reads_less(engine: Engine) -> None:
    """Weights are read once in each of the fewest steps, so the engine's run reads at least as much."""
    bound = workload_bound(engine, ITEMS, LIMITS)
    assert 0 < bound.num_bytes <= sum(each.num_bytes for each in work_of_a_run(engine))


def test_the_larger_time_is_the_bound(engine: Engine) -> None:
    """Output tokens per second come from whichever takes longer."""
    bound = workload_bound(engine, ITEMS, LIMITS)
    assert bound.arithmetic_s == bound.flops / LIMITS.flops + bound.int8_ops / LIMITS.int8_ops
    assert bound.reading_s == bound.num_bytes / LIMITS.read_bytes
    assert bound.output_tokens_per_s == 30 / max(bound.arithmetic_s, bound.reading_s)
