"""How close attention comes to the machine: fused multiply-adds and KV bytes a second, by batch, against the peaks.

    python benchmarks/ops/attention.py [--threads 1] [--isa auto] [--kv-dtype f16 int8 f32] [--case TEXT] [--seconds 1]

The heads are those of SmolLM2-135M unless said otherwise. Blocks lie in random order, and calls walk through several
layers, so that long contexts come from memory as they do in a real step. "of read" is the share of the bandwidth
bound: K and V read once for each group of q heads, at the rate of the read probe, which runs beside each case because
memory of a shared machine is not as fast from one second to the next. Informational, not a gate.
Times are the fastest decile of many calls, and processor time where there is one thread, as in linear.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from chairlift.ops import _native as native  # noqa: TID251
from chairlift.ops.cpu import CpuOps
from chairlift.ops.interface import Axis, KVCacheSpec, RaggedBatch, RopeSpec

BLOCK_SIZE = 16
NUM_LAYERS = 4
MAX_TOKENS = 2048


@dataclass(frozen=True)
class Case:
    """`rows[i]` new rows of a request that is `lengths[i]` long after them."""

    name: str
    lengths: list[int]
    rows: list[int]
    num_q_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64

    @property
    def fmas(self) -> int:
        """Of q.k and p.v together."""
        pairs = zip(self.lengths, self.rows, strict=True)
        keys = sum(sum(range(length - count + 1, length + 1)) for length, count in pairs)
        return 2 * keys * self.num_q_heads * self.head_dim

    def kv_bytes(self, dtype: str) -> int:
        """K and V of every request, read once; int8 has a scale per token and head."""
        head_bytes = {"f16": 2 * self.head_dim, "f32": 4 * self.head_dim, "int8": self.head_dim + 4}[dtype]
        return 2 * sum(self.lengths) * self.num_kv_heads * head_bytes


CASES = [
    Case("decode 1 x 200", [200], [1]),
    Case("decode 1 x 8000", [8000], [1]),
    Case("decode 46 x 100 to 500", [100 + 400 * i // 45 for i in range(46)], [1] * 46),
    Case("decode 64 x 500", [500] * 64, [1] * 64),
    Case("decode 8 x 4000", [4000] * 8, [1] * 8),
    Case("decode 16 x 2000", [2000] * 16, [1] * 16),
    Case("prefill 256", [256], [256]),
    Case("prefill 256 of 2048", [2048], [256]),
    Case("60 decodes beside 196 rows", [500] * 60 + [1000], [1] * 60 + [196]),
    Case("decode 16 x 1000, 32/8 heads of 128", [1000] * 16, [1] * 16, 32, 8, 128),
    Case("prefill 256 of 2048, 8/8 heads of 128", [2048], [256], 8, 8, 128),
]


def ragged_batch(case: Case) -> tuple[RaggedBatch, int]:
    """The step of a case, and the number of blocks that its pool needs."""
    needs = [-(-length // BLOCK_SIZE) for length in case.lengths]
    blocks = np.random.default_rng(0).permutation(sum(needs)).astype(np.int32)
    tables = np.zeros((len(needs), max(needs)), np.int32)
    for row, part in zip(tables, np.split(blocks, np.cumsum(needs)[:-1]), strict=True):
        row[: len(part)] = part
    spans = zip(case.lengths, case.rows, strict=True)
    positions = np.concatenate([np.arange(length - count, length) for length, count in spans]).astype(
        np.int32
    )
    owner = np.repeat(np.arange(len(needs)), case.rows)
    starts = np.cumsum([0, *case.rows]).astype(np.int32)
    batch = RaggedBatch(
        input_ids=np.zeros(len(positions), np.int32),
        positions=positions,
        query_start_loc=starts,
        seq_lens=np.array(case.lengths, np.int32),
        block_tables=tables,
        slot_mapping=tables[owner, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE
        + positions % BLOCK_SIZE,
        logits_indices=starts[1:] - 1,
    )
    return batch, sum(needs)


def fill_pool(ops: CpuOps, kv: Any, qkv: Any, rope: Any, num_slots: int) -> None:
    """Write every slot of every layer, so that no page is the shared zero page."""
    for first in range(0, num_slots, MAX_TOKENS):
        slots = np.arange(first, min(first + MAX_TOKENS, num_slots), dtype=np.int64)
        positions = np.arange(len(slots), dtype=np.int32)
        batch = RaggedBatch(
            input_ids=positions,
            positions=positions,
            query_start_loc=np.array([0, len(slots)], np.int32),
            seq_lens=np.array([len(slots)], np.int32),
            block_tables=np.zeros((1, num_slots // BLOCK_SIZE), np.int32),
            slot_mapping=slots,
            logits_indices=positions[-1:],
        )
        uploaded = ops.upload_batch(batch)
        for layer in range(NUM_LAYERS):
            ops.rope_and_store(uploaded, qkv, rope, kv, layer)


def measure(ops: CpuOps, case: Case, dtype: str, seconds: float, clock: Callable[[], float]) -> float:
    """Seconds of one layer's attention, fastest decile."""
    batch, num_blocks = ragged_batch(case)
    kv = ops.allocate_kv_cache(
        KVCacheSpec(NUM_LAYERS, num_blocks, BLOCK_SIZE, case.num_kv_heads, case.head_dim, dtype)
    )
    rope = ops.make_rope(RopeSpec(case.head_dim, 10000.0, 8192))
    qkv: Any = ops.allocate_activation(
        Axis.TOKENS, (case.num_q_heads + 2 * case.num_kv_heads) * case.head_dim
    )
    out = ops.allocate_activation(Axis.TOKENS, case.num_q_heads * case.head_dim)
    qkv.array[:] = np.random.default_rng(1).standard_normal(qkv.array.shape)
    fill_pool(ops, kv, qkv, rope, num_blocks * BLOCK_SIZE)
    uploaded = ops.upload_batch(batch)
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < 2 * NUM_LAYERS or time.perf_counter() < stop:
        for layer in range(NUM_LAYERS):
            start = clock()
            ops.attention(uploaded, qkv, kv, layer, case.head_dim**-0.5, out)
            times.append(clock() - start)
    return float(np.quantile(times[NUM_LAYERS:], 0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--kv-dtype", choices=["f16", "int8", "f32"], nargs="+", default=["f16"])
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases with this in their name")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    args = parser.parse_args()

    context = native.Context(args.threads, args.isa)
    peak = native.fma_peak(context, 0.2)
    print(f"isa {context.isa}, threads {args.threads}, KV in blocks of {BLOCK_SIZE}")
    print(f"peak {2e-9 * peak:.1f} GFLOP/s")
    print(
        f"{'case':>38} {'KV':>5} {'us':>9} {'GFLOP/s':>8} {'of peak':>8} {'GB/s':>6} {'read':>6} {'of read':>8}"
    )
    ops = CpuOps(args.threads, MAX_TOKENS, 64, args.isa)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    for case, dtype in product(CASES, args.kv_dtype):
        if args.case not in case.name:
            continue
        before = native.stream(context, 256 << 20, 3)
        seconds = measure(ops, case, dtype, args.seconds, clock)
        bandwidth = max(before, native.stream(context, 256 << 20, 3))
        flops, rate = case.fmas / seconds, case.kv_bytes(dtype) / seconds
        print(
            f"{case.name:>38} {dtype:>5} {seconds * 1e6:>9.1f} {2e-9 * flops:>8.1f} {flops / peak:>8.1%} "
            f"{rate / 1e9:>6.1f} {bandwidth / 1e9:>6.1f} {rate / bandwidth:>8.1%}"
        )
    ops.close()


if __name__ == "__main__":
    main()
