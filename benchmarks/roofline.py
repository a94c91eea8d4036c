"""How far each part of a step is from what this machine can do.

    python benchmarks/roofline.py                      # step profile: decode at 1, 4, 16, 64 rows, one prefill chunk
    python benchmarks/roofline.py --workloads DIR      # also the bound of w64 and w16 in output tokens per second

The machine is probed with our own loops: fused multiply-adds in registers (every thread) and reads of a large buffer.
The least time of an op is the larger of FLOPs / peak and bytes / bandwidth; its share is that over the measured time.
Weights count once a step, activations not at all (they stay in the caches); attention counts K and V once per group of
query heads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chairlift.config import EngineConfig
from chairlift.factory import create_ops, resolve_model
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.model.spec import ModelSpec
from chairlift.ops import _native as native  # noqa: TID251 - the probes live beside the kernels
from chairlift.ops.interface import RaggedBatch, SampleBatch

BLOCK = 16


@dataclass
class Machine:
    """Peaks of all threads together."""

    flops: float  # f32 FLOP/s
    bandwidth: float  # bytes/s read from memory

    @classmethod
    def probe(cls, threads: int, isa: str) -> Machine:
        context = native.Context(threads, isa)
        flops = max(2 * native.fma_peak(context, 0.2) for _ in range(3))
        return cls(flops, max(native.stream(context, 256 << 20, 4) for _ in range(3)))

    def least_seconds(self, flops: float, num_bytes: float) -> float:
        return max(flops / self.flops, num_bytes / self.bandwidth)


class TimedOps:
    """Passes everything on to the real ops and adds up the time of each op of a step, by name and weight."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self.seconds: dict[str, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)
        if name not in STEP_OPS:
            return op

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = op(*args, **kwargs)
            self.seconds[label(name, args)] += time.perf_counter() - started
            return result

        return timed


STEP_OPS = {
    "embed",
    "rms_norm",
    "linear",
    "gated_linear",
    "rope_and_store",
    "attention",
    "gather_logits_rows",
    "sample",
}
WEIGHT_NAMES: dict[int, str] = {}  # id of a packed weight -> what it is; filled after loading


def label(name: str, args: tuple[Any, ...]) -> str:
    return WEIGHT_NAMES.get(id(args[2]), name) if name in ("linear", "gated_linear") else name


def weight_costs(spec: ModelSpec, weights: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """(multiply-adds per row, bytes) of each group of weights over all layers."""
    q = spec.num_heads * spec.head_dim
    layers = spec.num_layers
    shapes = {
        "qkv": (layers, spec.qkv_size * spec.hidden_size),
        "attention out": (layers, q * spec.hidden_size),
        "gate and up": (layers, 2 * spec.intermediate_size * spec.hidden_size),
        "down": (layers, spec.intermediate_size * spec.hidden_size),
        "head": (1, spec.vocab_size * spec.hidden_size),
    }
    return {name: (n * size, n * weights[name]) for name, (n, size) in shapes.items()}


def make_step(lengths: list[int], rows: int, blocks_each: int) -> RaggedBatch:
    """One step in which sequence i has `lengths[i]` cached tokens and computes `rows` more."""
    num = len(lengths)
    tables = np.arange(num * blocks_each, dtype=np.int32).reshape(num, blocks_each)
    positions = np.concatenate([np.arange(n, n + rows, dtype=np.int32) for n in lengths])
    owners = np.repeat(np.arange(num), rows)
    return RaggedBatch(
        input_ids=np.random.default_rng(0).integers(100, 400, num * rows).astype(np.int32),
        positions=positions,
        query_start_loc=np.arange(0, num * rows + 1, rows, dtype=np.int32),
        seq_lens=np.array([n + rows for n in lengths], np.int32),
        block_tables=tables,
        slot_mapping=tables[owners, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK,
        logits_indices=np.arange(rows - 1, num * rows, rows, dtype=np.int32),
    )


def greedy(n: int) -> SampleBatch:
    f, i = np.float32, np.int32
    return SampleBatch(
        rows=np.arange(n, dtype=i),
        target=np.full(n, -1, i),
        temperature=np.zeros(n, f),
        top_k=np.zeros(n, i),
        top_p=np.ones(n, f),
        min_p=np.zeros(n, f),
        repetition_penalty=np.ones(n, f),
        presence_penalty=np.zeros(n, f),
        frequency_penalty=np.zeros(n, f),
        seed=np.zeros(n, np.uint64),
        branch=np.zeros(n, np.uint32),
        position=np.zeros(n, np.uint32),
        num_logprobs=np.full(n, -1, i),
        bias_start=np.zeros(n + 1, i),
        bias_ids=np.zeros(0, i),
        bias_values=np.zeros(0, f),
        history_start=np.zeros(n + 1, i),
        history_prompt_len=np.zeros(n, i),
        history_ids=np.zeros(0, i),
    )


def attention_cost(spec: ModelSpec, lengths: list[int], rows: int) -> tuple[float, float]:
    """(FLOPs, bytes of f16 K and V) of all layers."""
    pairs = sum(n * rows + rows * (rows + 1) / 2 for n in lengths)
    flops = 4 * pairs * spec.num_heads * spec.head_dim * spec.num_layers
    kv = 2 * 2 * sum(n + rows for n in lengths) * spec.num_kv_heads * spec.head_dim * spec.num_layers
    return flops, kv


class Profile:
    """A loaded model whose steps are timed op by op."""

    def __init__(self, config: EngineConfig, max_rows: int) -> None:
        files = open_model_files(config.model.model or "")
        self.spec = files.spec
        self.ops = TimedOps(create_ops(config.compute, max_rows))
        self.model: Any = load_model(files, self.ops, 2048)  # type: ignore[arg-type]
        layer = self.model._layers[0]
        packed = {
            "qkv": layer.qkv,
            "attention out": layer.out,
            "gate and up": layer.gate_up,
            "down": layer.down,
            "head": self.model._head,
        }
        for each in self.model._layers:
            WEIGHT_NAMES.update(
                {id(each.qkv): "qkv", id(each.out): "attention out", id(each.gate_up): "gate and up"}
            )
            WEIGHT_NAMES[id(each.down)] = "down"
        WEIGHT_NAMES[id(self.model._head)] = "head"
        sizes = {name: (w.packed if name == "gate and up" else w).nbytes for name, w in packed.items()}
        self.costs = weight_costs(self.spec, sizes)

    def run(self, lengths: list[int], rows: int, seconds: float) -> tuple[dict[str, float], float]:
        """Median-of-rounds seconds of each op in a step, and of the whole step."""
        blocks = -(-(max(lengths) + rows) // BLOCK)
        kv = self.ops.allocate_kv_cache(self.model.kv_cache_spec(len(lengths) * blocks, BLOCK, "f16"))
        batch = self.ops.upload_batch(make_step(lengths, rows, blocks))
        request = greedy(len(lengths))
        rounds: list[tuple[dict[str, float], float]] = []
        deadline = time.perf_counter() + seconds
        while len(rounds) < 5 or time.perf_counter() < deadline:
            self.ops.seconds = defaultdict(float)
            started = time.perf_counter()
            self.ops.sample(batch, self.model.forward(batch, kv), request)
            rounds.append((dict(self.ops.seconds), time.perf_counter() - started))
        names = rounds[0][0]
        return {n: float(np.median([r[0][n] for r in rounds])) for n in names}, float(
            np.median([r[1] for r in rounds])
        )


def print_profile(profile: Profile, machine: Machine, lengths: list[int], rows: int, seconds: float) -> None:
    times, total = profile.run(lengths, rows, seconds)
    num_rows, num_logits = len(lengths) * rows, len(lengths)
    print(
        f"\n{len(lengths)} sequences x {rows} rows on {lengths[0]} cached tokens: {total * 1e3:.2f} ms a step"
    )
    print(f"  {'part':<18}{'ms':>9}{'of step':>9}{'GFLOP/s':>9}{'GB/s':>7}{'of bound':>10}")
    least_total = 0.0
    for name, spent in sorted(times.items(), key=lambda item: -item[1]):
        flops = num_bytes = 0.0
        if name in profile.costs:
            fmas, num_bytes = profile.costs[name]
            flops = 2 * fmas * (num_logits if name == "head" else num_rows)
        elif name == "attention":
            flops, num_bytes = attention_cost(profile.spec, lengths, rows)
        least = machine.least_seconds(flops, num_bytes)
        least_total += least
        share = f"{least / spent:>9.0%}" if least else " " * 9
        print(
            f"  {name:<18}{spent * 1e3:>9.3f}{spent / total:>9.1%}{flops / spent / 1e9:>9.1f}"
            f"{num_bytes / spent / 1e9:>7.1f} {share}"
        )
    outside = total - sum(times.values())
    print(f"  {'between ops':<18}{outside * 1e3:>9.3f}{outside / total:>9.1%}")
    print(f"  {'whole step':<18}{total * 1e3:>9.3f}{'':>25} {least_total / total:>9.0%}")


def print_bounds(profile: Profile, machine: Machine, folder: Path) -> None:
    """The most output tokens a second that the FMA peak allows, attention included."""
    for number in (16, 64):
        requests = json.loads((folder / f"w{number}.json").read_text())["requests"]
        flops, out = 0.0, 0
        fmas_per_row = sum(fmas for name, (fmas, _) in profile.costs.items() if name != "head")
        for request in requests:
            prompt, answer = len(request["prompt_token_ids"]), request["max_tokens"]
            rows = prompt + answer - 1
            flops += 2 * (rows * fmas_per_row + answer * profile.costs["head"][0])
            flops += attention_cost(profile.spec, [0], rows)[0]
            out += answer
        bound = flops / machine.flops
        print(
            f"w{number}: {flops / 1e12:.2f} TFLOP, at least {bound:.1f} s, at most {out / bound:.0f} output tokens/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--workloads", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each step")
    args = parser.parse_args()
    config = resolve_model(EngineConfig.from_flags(model=args.model, threads=args.threads, isa=args.isa))
    profile = Profile(config, 256)
    described = profile.ops.describe()
    machine = Machine.probe(int(described["threads"]), described["isa"])
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "?")
    print(f"{cpu.split(':')[-1].strip()}, {described['threads']} threads, {described['isa']}")
    print(f"peak {machine.flops / 1e9:.0f} GFLOP/s, reads {machine.bandwidth / 1e9:.1f} GB/s")
    if args.workloads:
        if not args.workloads.exists():
            sys.exit(f"{args.workloads} is not there")
        print_bounds(profile, machine, args.workloads)
    for num in (1, 4, 16, 64):
        print_profile(profile, machine, [64] * num, 1, args.seconds)
    print_profile(profile, machine, [0], 256, args.seconds)
    print_profile(profile, machine, [1000] * 8, 1, args.seconds)


if __name__ == "__main__":
    main()
