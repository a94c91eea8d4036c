"""Figures of a serving benchmark and vLLM's way of printing them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.load import LoadResult, Traffic
from chairlift.bench.stream_client import Outcome

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
SHOWN_ERRORS = 10
_WIDTH = 50


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What to show: metrics by name, percentiles, and limits in milliseconds that a good request keeps."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl")
    percentiles: Sequence[float] = (99.0,)
    goodput: Mapping[str, float] | None = None


def document(load: LoadResult, options: ReportOptions) -> dict[str, Any]:
    """All figures under the keys of vLLM's result files; ours are `client_cpu_share` and `client_cpu_s`."""
    outcomes, seconds = load.outcomes, load.duration_s
    good = [outcome for outcome in outcomes if outcome.error is None]
    prompt, output = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / seconds,
        "request_goodput": _num_within(good, options.goodput) / seconds if options.goodput else None,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        # A run shorter than a second fills none.
        "max_output_tokens_per_s": max(_peak_per_second(good), output / seconds),
        "max_concurrent_requests": _peak_concurrency(good),
        "client_cpu_s": load.client_cpu_s,
        "client_cpu_share": load.client_cpu_s / seconds,
    }
    for name in options.metrics:
        result.update(_statistics(name, [v for o in good for v in _values(o, name)], options.percentiles))
    return result


def details(load: LoadResult) -> dict[str, Any]:
    """What vLLM's --save-detailed adds: a list with an entry per request for each key."""
    outcomes = load.outcomes
    return {
        "input_lens": [o.prompt_tokens for o in outcomes],
        "output_lens": [0 if o.error else o.output_tokens for o in outcomes],
        "ttfts": [o.ttft for o in outcomes],
        "itls": [_gaps(o) for o in outcomes],
        "latencies": [o.latency for o in outcomes],
        "start_times": [o.sent_at for o in outcomes],
        "queue_times": [o.queued_s for o in outcomes],
        "generated_texts": ["".join(o.texts) for o in outcomes],
        "errors": [o.error or "" for o in outcomes],
    }


def text(result: Mapping[str, Any], traffic: Traffic, options: ReportOptions) -> str:
    """The block that vLLM prints, and the client's own share of a processor."""
    lines = [_title(" Serving Benchmark Result ", "=")]
    lines += [_line("Successful requests:", result["completed"]), _line("Failed requests:", result["failed"])]
    if traffic.max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", traffic.max_concurrency))
    if traffic.request_rate != float("inf"):
        lines.append(_line("Request rate configured (RPS):", traffic.request_rate))
    lines += [
        _line("Benchmark duration (s):", result["duration"]),
        _line("Total input tokens:", result["total_input_tokens"]),
        _line("Total generated tokens:", result["total_output_tokens"]),
        _line("Request throughput (req/s):", result["request_throughput"]),
    ]
    if options.goodput:
        lines.append(_line("Request goodput (req/s):", result["request_goodput"]))
    lines += [
        _line("Output token throughput (tok/s):", result["output_throughput"]),
        _line("Peak output token throughput (tok/s):", float(result["max_output_tokens_per_s"])),
        _line("Peak concurrent requests:", float(result["max_concurrent_requests"])),
        _line("Total token throughput (tok/s):", result["total_token_throughput"]),
        _line("Client CPU (% of one core):", 100 * result["client_cpu_share"]),
    ]
    for name in options.metrics:
        lines += _section(name, result, options.percentiles)
    return "\n".join([*lines, "=" * _WIDTH])


def errors(outcomes: Sequence[Outcome]) -> str:
    """The first failures, a line each; empty when there are none."""
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if not failed:
        return ""
    shown = (f"Error {number}: {error}" for number, error in enumerate(failed[:SHOWN_ERRORS]))
    return "\n".join([f"{len(failed)} requests failed (the first {SHOWN_ERRORS} at most):", *shown])


def percentile(values: Sequence[float], share: float) -> float:
    """Of `share` percent, linear between neighbours as in numpy; 0 without values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _statistics(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Milliseconds under vLLM's keys, from seconds."""
    ms = [1000 * value for value in values]
    return {
        f"mean_{name}_ms": statistics.fmean(ms) if ms else 0.0,
        f"median_{name}_ms": percentile(ms, 50),
        f"std_{name}_ms": statistics.pstdev(ms) if ms else 0.0,
        **{f"p{share:g}_{name}_ms": percentile(ms, share) for share in percentiles},
    }


def _section(name: str, result: Mapping[str, Any], percentiles: Sequence[float]) -> list[str]:
    label, title = METRICS[name]
    return [
        _title(title, "-"),
        _line(f"Mean {label} (ms):", result[f"mean_{name}_ms"]),
        _line(f"Median {label} (ms):", result[f"median_{name}_ms"]),
        *(_line(f"P{share:g} {label} (ms):", result[f"p{share:g}_{name}_ms"]) for share in percentiles),
    ]


def _values(outcome: Outcome, name: str) -> list[float]:
    """What one good request adds to a metric, in seconds."""
    if name == "itl":
        return _gaps(outcome)
    if name == "tpot":
        return [_tpot(outcome)] if outcome.output_tokens > 1 else []
    return [outcome.ttft if name == "ttft" else outcome.latency]


def _tpot(outcome: Outcome) -> float:
    return (outcome.latency - outcome.ttft) / max(1, outcome.output_tokens - 1)


def _gaps(outcome: Outcome) -> list[float]:
    """Between events; an event may bring several tokens, or none when a character needs another one."""
    return [after - before for before, after in zip(outcome.times, outcome.times[1:], strict=False)]


def _num_within(good: Sequence[Outcome], limits: Mapping[str, float]) -> int:
    """Requests that keep every limit; one token has no time per token, and keeps any."""
    kept = 0
    for outcome in good:
        values = {"ttft": outcome.ttft, "tpot": _tpot(outcome), "e2el": outcome.latency}
        kept += all(1000 * values[name] <= limit for name, limit in limits.items())
    return kept


def _peak_per_second(good: Sequence[Outcome]) -> int:
    """Events in the fullest second, counted from the first request."""
    start = min((o.sent_at for o in good), default=0.0)
    seconds = Counter(int(at - start) for o in good for at in o.times)
    return max(seconds.values(), default=0)


def _peak_concurrency(good: Sequence[Outcome]) -> int:
    """Most requests that were sent and not yet answered; an end at the moment of a start comes first."""
    changes = sorted([(o.sent_at, 1) for o in good] + [(o.sent_at + o.latency, -1) for o in good])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def _title(name: str, fill: str) -> str:
    return name.center(_WIDTH, fill)


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10}" if isinstance(value, int) else f"{label:<40} {value:<10.2f}"
