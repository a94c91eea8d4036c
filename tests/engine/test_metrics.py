"""Tests of the Prometheus metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.engine.frontend import AsyncFrontend
from chairlift.engine.metrics import EngineMetrics, Histogram
from chairlift.engine.types import StepFrame, StepRow, StepStats
from chairlift.errors import RequestError
from chairlift.sampling_params import SamplingParams
from fakes import ByteTokenizer, FakeAsyncClient, build, run_async, until


def scrape(metrics: EngineMetrics) -> dict[str, float]:
    """Sample name (with its labels, but for buckets) to value."""
    samples = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                samples[sample.name + "".join(sample.labels.values())] = sample.value
    return samples


def test_vllm_names_under_our_prefix() -> None:
    """The names that dashboards for vLLM look for are there, in our own registry and not in the global one."""
    names = set(scrape(EngineMetrics()))
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "request_success_totalstop",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_sum",
        "request_time_per_output_token_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
        "engine_restarts_total",
        "kernel_busy_seconds_total",
    ):
        assert "chairlift:" + name in names
    assert b"chairlift" not in generate_latest(REGISTRY)


def test_histogram_buckets_are_cumulative_and_include_their_bound() -> None:
    """A value on a bound belongs to it; the last bucket has everything."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.total == 12.0


def test_totals_of_dead_engines_are_kept() -> None:
    """Counters never go back when a new engine starts from zero, and its gauges start idle."""
    metrics = EngineMetrics()
    stats = StepStats(
        num_running=3,
        num_kv_blocks=10,
        num_free_blocks=4,
        num_preemptions_total=2,
        prefix_hit_tokens_total=16,
    )
    metrics.stepped(StepFrame(1, 0.0, 0.1, stats=stats, rows=[StepRow("r", 5, 0)]))
    assert scrape(metrics)["chairlift:kv_cache_usage_perc"] == pytest.approx(0.6)
    metrics.engine_died()
    assert scrape(metrics)["chairlift:num_requests_running"] == 0
    assert scrape(metrics)["chairlift:kv_cache_usage_perc"] == 0
    metrics.stepped(StepFrame(1, 0.0, 0.1, stats=StepStats(num_kv_blocks=10, num_preemptions_total=1)))
    samples = scrape(metrics)
    assert samples["chairlift:num_preemptions_total"] == 3
    assert samples["chairlift:prefix_cache_hits_total"] == 16
    assert samples["chairlift:engine_restarts_total"] == 1


def test_kernel_time_adds_up_over_steps() -> None:
    """Forward passes of every step count, those of an engine that died included."""
    metrics = EngineMetrics()
    metrics.stepped(StepFrame(1, 0.0, 0.1, stats=StepStats(forward_s=0.25)))
    metrics.engine_died()
    metrics.stepped(StepFrame(1, 0.0, 0.1, stats=StepStats(forward_s=0.5)))
    assert scrape(metrics)["chairlift:kernel_busy_seconds_total"] == 0.75


def test_b76_gauges_return_to_idle_and_counters_add_up() -> None:
    """After finished, aborted, rejected and preempted requests, with nothing new coming, all numbers agree."""

    async def main() -> dict[str, float]:
        assembly = build(num_kv_blocks=20, max_num_seqs=8, max_model_len=256)
        frontend = AsyncFrontend(FakeAsyncClient(lambda: assembly.engine), ByteTokenizer())
        await frontend.start()

        def submit(i: int, **params: Any) -> Any:
            return frontend.submit([i + 1] * 40, SamplingParams(**params), request_id=f"r{i}")

        fine = [submit(i, max_tokens=48) for i in range(20)]
        cut = [submit(20 + i, max_tokens=150) for i in range(10)]
        queued = [submit(30 + i, max_tokens=150) for i in range(5)]
        for _ in range(5):
            with pytest.raises(RequestError):
                submit(0, max_tokens=1000)
        for stream in queued:
            await stream.abort()
        for stream in cut:
            while stream.usage.completion_tokens < 3:
                await anext(stream)
            await stream.abort()
        for stream in fine:
            await stream.collect()
        await until(lambda: not assembly.engine.has_unfinished())
        total = sum(s.usage.completion_tokens for s in (*fine, *cut, *queued))
        samples = scrape(frontend.metrics)
        await frontend.close()
        assert samples["chairlift:generation_tokens_total"] == total
        return samples

    samples = run_async(main())
    assert samples["chairlift:num_requests_running"] == samples["chairlift:num_requests_waiting"] == 0
    assert samples["chairlift:kv_cache_usage_perc"] == 0
    assert samples["chairlift:num_preemptions_total"] > 0
    assert samples["chairlift:request_success_totallength"] == 20
    assert samples["chairlift:request_success_totalabort"] == 15
    assert samples["chairlift:request_success_totalerror"] == 0
    assert samples["chairlift:time_to_first_token_seconds_count"] == 30
    assert samples["chairlift:request_queue_time_seconds_count"] == 30
    assert samples["chairlift:e2e_request_latency_seconds_count"] == 35
    assert samples["chairlift:prompt_tokens_total"] == 35 * 40
