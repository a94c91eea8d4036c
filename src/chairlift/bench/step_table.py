"""A `StepReport` as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from chairlift.bench.step import OpShare, StepReport
from chairlift.ops.interface import MachineLimits

_HEADER = f"{'op':<28}{'calls':>6}{'ms':>9}{'of step':>9}{'GFLOP':>9}{'MB':>8}{'GFLOP/s':>9}{'GB/s':>7}{'of bound':>10}"


def machine_line(limits: MachineLimits) -> str:
    """The machine's bounds, in a line."""
    return (
        f"at most {limits.flops / 1e9:.0f} GFLOP/s of f32, {limits.int8_ops / 1e9:.0f} Gop/s of int8, "
        f"{limits.read_bytes / 1e9:.1f} GB/s read"
    )


def text(report: StepReport, num_threads: int) -> str:
    """The step's times; with profile, a table of the ops, and what is outside them."""
    lines = [f"{report.mix}: {_summary(report)}"]
    if report.ops:
        lines += ["", _HEADER, *(_op_line(op, report.step_s) for op in report.ops)]
        lines += ["", *_outside_lines(report), "", *_totals(report, num_threads)]
    return "\n".join(lines)


def document(report: StepReport, limits: MachineLimits | None) -> dict[str, Any]:
    """Everything, in seconds, FLOPs and bytes."""
    return {
        "machine": asdict(limits) if limits else None,
        **asdict(report.mix),
        "step_s": report.step_s,
        "median_s": median(report.seconds),
        "steps_s": report.seconds,
        "outside_s": report.outside,
        "ops": [asdict(op) for op in report.ops],
    }


def _summary(report: StepReport) -> str:
    seconds = report.seconds
    tenth = len(seconds) // 10
    rows = report.mix.running + report.mix.prompt_tokens
    return (
        f"{1e3 * median(seconds):.2f} ms a step (fastest tenth {1e3 * seconds[tenth]:.2f}, "
        f"slowest {1e3 * seconds[-1 - tenth]:.2f}; {len(seconds)} steps), {rows / median(seconds):.0f} tokens/s"
    )


def _op_line(op: OpShare, step_s: float) -> str:
    line = f"{op.name:<28}{op.calls:>6.0f}{_time(op.seconds, step_s)}"
    if not op.least_seconds:
        return line
    flops, num_bytes = (op.flops + op.int8_ops) / 1e9, op.num_bytes / 1e6
    speeds = f"{flops / op.seconds:>9.1f}{num_bytes / 1e3 / op.seconds:>7.1f}"
    return f"{line}{flops:>9.2f}{num_bytes:>8.1f}{speeds}{op.least_seconds / op.seconds:>10.0%}"


def _outside_lines(report: StepReport) -> list[str]:
    total = sum(report.outside.values())
    rows = [(f"  {part}", seconds) for part, seconds in report.outside.items()]
    return [
        f"{name:<34}{_time(seconds, report.step_s)}" for name, seconds in [("outside the ops", total), *rows]
    ]


def _totals(report: StepReport, num_threads: int) -> list[str]:
    step_s = report.step_s
    flops = sum(op.flops + op.int8_ops for op in report.ops) / 1e9
    num_bytes = sum(op.num_bytes for op in report.ops) / 1e6
    beyond = any(op.least_seconds > op.seconds for op in report.ops)
    why = "a share above 100%: reads were slower while probed, or part of it stays in the caches"
    return [
        *([why] if beyond else []),
        f"whole step: {flops:.2f} GFLOP, {num_bytes:.0f} MB, {report.least_s / step_s:.0%} of the bound",
        f"kernels busy: {report.kernels_s / step_s:.1%} of the step; "
        f"{num_threads} threads in tiles: {report.busy_s / num_threads / step_s:.1%}",
    ]


def _time(seconds: float, step_s: float) -> str:
    return f"{1e3 * seconds:>9.3f}{seconds / step_s:>9.1%}"
