"""Prometheus metrics under vLLM's names with the prefix `chairlift:`.

Counting is plain integers, so that a step stays cheap; `prometheus_client` is imported, and its objects are made,
when someone scrapes. Everything is counted per choice (a request with n=3 counts three times), except prompt
tokens, which count once per request, when it is accepted. Work for requests that are aborted later counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from chairlift.engine.types import StepFrame, StepStats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

PREFIX = "chairlift:"
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)


class Histogram:
    """Counts per bucket; a value falls into the first bucket whose bound it does not exceed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's form: (upper bound, values up to it), ending with +Inf."""
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(running)))
        return buckets


class EngineMetrics:
    """All counters of a front end. `registry` is its own, never the process-wide default."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.engine_restarts = 0
        self.kernel_busy_s = 0.0
        self.finish_reasons = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.time_to_first_token = Histogram(_LONG)
        self.inter_token_latency = Histogram(_SHORT)
        self.time_per_output_token = Histogram(_SHORT)
        self.e2e_latency = Histogram(_LONG)
        self.queue_time = Histogram(_LONG)
        self.step_tokens = Histogram(_TOKENS)
        self._now = StepStats()  # the last frame's
        self._before = StepStats()  # totals of engines that died
        self._registry: CollectorRegistry | None = None

    @property
    def registry(self) -> CollectorRegistry:
        """What to give to `prometheus_client.generate_latest`."""
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def stepped(self, frame: StepFrame) -> None:
        """Enter a step's record."""
        self._now = frame.stats
        self.kernel_busy_s += frame.stats.forward_s
        if frame.rows:
            self.step_tokens.observe(sum(row.num_scheduled_tokens for row in frame.rows))

    def engine_died(self) -> None:
        """Keep the dead engine's totals; nothing runs until the next one is ready."""
        before, now = self._before, self._now
        self.engine_restarts += 1
        self._before = StepStats(
            num_preemptions_total=before.num_preemptions_total + now.num_preemptions_total,
            prefix_query_tokens_total=before.prefix_query_tokens_total + now.prefix_query_tokens_total,
            prefix_hit_tokens_total=before.prefix_hit_tokens_total + now.prefix_hit_tokens_total,
        )
        self._now = StepStats(num_kv_blocks=now.num_kv_blocks, num_free_blocks=now.num_kv_blocks)

    def finished(self, reason: str, latency: float, num_tokens: int, since_first_token: float) -> None:
        """A choice ended."""
        self.finish_reasons[reason] += 1
        self.e2e_latency.observe(latency)
        if num_tokens > 1:
            self.time_per_output_token.observe(since_first_token / (num_tokens - 1))

    def collect(self) -> Iterator[Metric]:
        """Everything, as prometheus_client's objects (it calls this at each scrape)."""
        yield from self._gauge_families()
        yield from self._counter_families()
        yield from self._histogram_families()

    def _gauge_families(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        now = self._now
        used = 1.0 - now.num_free_blocks / now.num_kv_blocks if now.num_kv_blocks else 0.0
        for name, text, value in (
            ("num_requests_running", "Choices that hold KV blocks.", float(now.num_running)),
            (
                "num_requests_waiting",
                "Choices in the queue, preempted ones included.",
                float(now.num_waiting),
            ),
            ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is 100 percent.", used),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)

    def _counter_families(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        before, now = self._before, self._now
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of accepted requests.", self.prompt_tokens),
            ("generation_tokens", "Tokens generated.", self.generation_tokens),
            ("engine_restarts", "Times the engine died and was started again.", self.engine_restarts),
            (
                "kernel_busy_seconds",
                "Time in forward passes; its rate is the share of wall time that kernels are busy.",
                self.kernel_busy_s,
            ),
            (
                "num_preemptions",
                "Times a request gave its KV blocks back.",
                before.num_preemptions_total + now.num_preemptions_total,
            ),
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache.",
                before.prefix_query_tokens_total + now.prefix_query_tokens_total,
            ),
            (
                "prefix_cache_hits",
                "Prompt tokens found in the prefix cache.",
                before.prefix_hit_tokens_total + now.prefix_hit_tokens_total,
            ),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        finished = CounterMetricFamily(
            PREFIX + "request_success", "Choices that ended, by reason.", labels=["finished_reason"]
        )
        for reason, count in self.finish_reasons.items():
            finished.add_metric([reason], count)
        yield finished

    def _histogram_families(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        for name, text, histogram in (
            ("time_to_first_token_seconds", "From acceptance to the first token.", self.time_to_first_token),
            ("inter_token_latency_seconds", "Between a choice's tokens.", self.inter_token_latency),
            (
                "request_time_per_output_token_seconds",
                "Mean time per token after the first, per choice.",
                self.time_per_output_token,
            ),
            ("e2e_request_latency_seconds", "From acceptance to the end.", self.e2e_latency),
            ("request_queue_time_seconds", "From acceptance to the first step.", self.queue_time),
            ("iteration_tokens_total", "Tokens computed per step.", self.step_tokens),
        ):
            yield HistogramMetricFamily(
                PREFIX + name, text, buckets=histogram.cumulative(), sum_value=histogram.total
            )
