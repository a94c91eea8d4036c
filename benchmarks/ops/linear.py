"""How close the linear kernels come to the machine: Gop/s per shape and row count, and the share of the peak.

    python benchmarks/ops/linear.py [--threads 1] [--isa auto] [--compute f32|int8] [--rows 1 16 64] [--seconds 0.2]

The shapes are those of SmolLM2-135M. Weights are cycled through copies larger than the caches when rows are few,
because in a real step every layer's weights come from memory. GB/s is packed weight bytes read per second.
Times are the fastest decile of many calls, and processor time where there is one thread: on a machine that others
use too, the rest tells about the others. The peak is that of fused multiply-adds, or with int8 of products of 8-bit
integers alone; scaling their sums group by group takes two or three of the same units' cycles in ten or eleven.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from chairlift.ops import _native as native  # noqa: TID251

SHAPES = [  # name, type, out, in, gated
    ("qkv", "Q4_1", 960, 576, False),
    ("attention out", "Q4_1", 576, 576, False),
    ("gate and up", "Q4_1", 1536, 576, True),
    ("down", "Q4_1", 576, 1536, False),
    ("head", "Q8_0", 49152, 576, False),
]
NUM_LAYERS = 30
BLOCK_BYTES = {"Q4_1": 20, "Q4_0": 18, "Q8_0": 34}
COPIES_BYTES = 48 << 20  # more than the caches hold


def random_part(kind: str, out: int, width: int) -> tuple[Any, int, Any]:
    """A tensor of a file with plausible scales."""
    rng = np.random.default_rng(out)
    blocks = rng.integers(0, 256, (out, width // 32, BLOCK_BYTES[kind]), dtype=np.uint8)
    scales = np.full((out, width // 32, 2 if kind == "Q4_1" else 1), 0.01, np.float16)
    blocks[:, :, : 2 * scales.shape[2]] = scales.view(np.uint8)
    return getattr(native.TensorType, kind), width, blocks.reshape(out, -1)


def pack_copies(context: Any, kind: str, out: int, width: int, gated: bool, compute: Any) -> list[Any]:
    """Enough equal weights that none is in the caches when its turn comes."""
    one = random_part(kind, out, width)
    pack = (
        (lambda: native.pack_gated_linear(context, one, one, compute))
        if gated
        else (lambda: native.pack_linear(context, [one], compute))
    )
    first = pack()
    return [first, *[pack() for _ in range(min(NUM_LAYERS, COPIES_BYTES // first.nbytes + 1) - 1)]]


def fast_seconds(
    call: Callable[[Any], None], weights: list[Any], seconds: float, clock: Callable[[], float]
) -> float:
    """Seconds of one call, fastest decile of as many as fit."""
    times = []
    stop = time.perf_counter() + seconds
    while not times or time.perf_counter() < stop:
        for w in weights:
            start = clock()
            call(w)
            times.append(clock() - start)
    return float(np.quantile(times, 0.1))


def measure(context: Any, weights: list[Any], rows: int, gated: bool, seconds: float) -> float:
    """Seconds of one product of `rows` rows."""
    w = weights[0]
    clock = time.thread_time if context.num_threads == 1 else time.perf_counter
    x = np.random.default_rng(0).standard_normal((rows, w.in_)).astype(np.float32)
    y = np.ones((rows, w.out), np.float32)  # ones: its pages exist before the clock starts
    if gated:
        silu = native.GateActivation.silu
        return fast_seconds(
            lambda w: native.gated_linear(context, x, rows, w, silu, y), weights, seconds, clock
        )
    return fast_seconds(lambda w: native.linear(context, x, rows, w, y, False), weights, seconds, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--compute", choices=("f32", "int8"), default="f32")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--seconds", type=float, default=0.2, help="for each shape and row count")
    args = parser.parse_args()

    context = native.Context(args.threads, args.isa)
    compute = getattr(native.ComputeDtype, args.compute)
    probe = native.int8_peak if args.compute == "int8" else native.fma_peak
    print(f"isa {context.isa}, threads {context.num_threads}, compute dtype {args.compute}")
    bandwidth = native.stream(context, 256 << 20, 5)
    peak = probe(context, args.seconds)
    print(f"peak {2e-9 * peak:.1f} Gop/s, read bandwidth {bandwidth / 1e9:.1f} GB/s")
    print(f"{'shape':>14} {'rows':>5} {'us':>9} {'Gop/s':>9} {'of peak':>8} {'GB/s':>6} {'of read':>8}")
    packed = {name: pack_copies(context, *shape, compute) for name, *shape in SHAPES}
    for rows in args.rows:
        step_seconds = step_fmas = 0.0
        for name, _, out, width, gated in SHAPES:
            peak = max(peak, probe(context, args.seconds / 4))
            weights = packed[name]
            seconds = measure(context, weights, rows, gated, args.seconds)
            fmas = rows * out * width * (2 if gated else 1)
            repeats = 1 if name == "head" else NUM_LAYERS
            step_seconds += repeats * seconds
            step_fmas += repeats * fmas / peak
            rate = weights[0].nbytes / seconds
            print(
                f"{name:>14} {rows:>5} {seconds * 1e6:>9.1f} {2e-9 * fmas / seconds:>9.1f} "
                f"{fmas / seconds / peak:>8.1%} {rate / 1e9:>6.1f} {rate / bandwidth:>8.1%}"
            )
        print(
            f"{'all of a step':>14} {rows:>5} {step_seconds * 1e6:>9.1f} {'':>9} {step_fmas / step_seconds:>8.1%}"
        )


if __name__ == "__main__":
    main()
