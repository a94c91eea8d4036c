"""How far steps, and a whole workload, are from what this machine can do.

    python benchmarks/roofline.py                             steps: decode at 1, 4, 16 and 64, a prompt, long contexts
    python benchmarks/roofline.py --workload W64.json         the most output tokens a second that there can be
    python benchmarks/roofline.py --workload W64.json --measured 367                       and the share that 367 are

The flags are those of `chairlift bench step --profile`, which prints the same table for any other mix. The least time
of an op is the larger of FLOPs / peak and bytes / bandwidth. Weights count once a step, activations not at all (they
stay in the caches), K and V once per request.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from chairlift.bench.roofline import workload_bound
from chairlift.bench.step import StepMix, measure, probe
from chairlift.bench.step_table import machine_line, text
from chairlift.bench.workload import from_file
from chairlift.cli.flags import add_engine_flags, add_model_option, engine_config
from chairlift.cli.models import resolve_model
from chairlift.engine.engine import Engine
from chairlift.factory import open_engine
from chairlift.ops.interface import MachineLimits

MIXES = (*(StepMix(running, 64) for running in (1, 4, 16, 64)), StepMix(0, 1, 256), StepMix(8, 1000))


def print_bound(engine: Engine, path: str, limits: MachineLimits, measured: Sequence[float]) -> None:
    bound = workload_bound(engine, from_file(path), limits)
    print(
        f"{path}: {bound.num_requests} requests, {bound.num_output_tokens} output tokens, "
        f"{(bound.flops + bound.int8_ops) / 1e12:.2f} TFLOP, {bound.num_bytes / 1e9:.1f} GB"
    )
    print(
        f"at least {bound.least_s:.2f} s (arithmetic {bound.arithmetic_s:.2f}, reading {bound.reading_s:.2f}): "
        f"at most {bound.output_tokens_per_s:.0f} output tokens/s"
    )
    for speed in measured:
        print(f"measured {speed:g} output tokens/s: {speed / bound.output_tokens_per_s:.1%} of it")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_option(parser)
    parser.add_argument("--workload", metavar="FILE", help="the bound of this workload instead of steps")
    parser.add_argument("--measured", type=float, nargs="*", default=(), metavar="TOKENS_PER_S")
    parser.add_argument("--steps", type=int, default=30, help="of each mix")
    add_engine_flags(parser, text=False)
    args = parser.parse_args()
    engine = open_engine(resolve_model(engine_config(args, args.model)))
    try:
        limits = probe(engine)
        print(machine_line(limits))
        if args.workload:
            print_bound(engine, args.workload, limits, args.measured)
            return
        for mix in MIXES:
            report = measure(engine, mix, steps=args.steps, limits=limits)
            print(f"\n{text(report, int(engine.info.details['threads']))}")
    finally:
        engine.close()


if __name__ == "__main__":
    main()
