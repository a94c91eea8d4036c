"""Flags that say what to measure with, shared by `bench throughput` and `bench serve`. Names are vLLM's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from chairlift.errors import ConfigError

if TYPE_CHECKING:
    from chairlift.bench.datasets import DatasetSpec


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Add --workload, --dataset-name, --dataset-path, the lengths, --num-prompts and --seed."""
    group = parser.add_argument_group("requests")
    group.add_argument(
        "--workload", metavar="FILE", help="JSON file of requests: --dataset-name workload, with its path"
    )
    group.add_argument(
        "--dataset-name",
        choices=("random", "azure", "workload"),
        help="random token ids, lengths of an Azure trace (CSV), or a workload file (default: random)",
    )
    group.add_argument("--dataset-path", metavar="FILE", help="file of the data set")
    group.add_argument("--num-prompts", type=int, metavar="N", help="default: 64 random ones, all of a file")
    group.add_argument(
        "--input-len", type=int, metavar="TOKENS", help="of a random prompt (128), or at most of a trace's"
    )
    group.add_argument(
        "--output-len", type=int, metavar="TOKENS", help="of a random answer (128), or at most of a trace's"
    )
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="R",
        help="random lengths vary by this share, up and down (default: 0)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of ids, lengths and arrivals (0)")


def dataset_spec(args: argparse.Namespace) -> DatasetSpec:
    """What the flags ask for. Raises ConfigError when --workload contradicts the others."""
    from chairlift.bench.datasets import DatasetSpec

    name, path = args.dataset_name, args.dataset_path
    if args.workload is not None:
        if path is not None or name not in (None, "workload"):
            raise ConfigError("--workload is a data set of its own; drop --dataset-name and --dataset-path")
        name, path = "workload", args.workload
    return DatasetSpec(
        name=name or "random",
        path=path,
        num_prompts=args.num_prompts,
        input_len=args.input_len,
        output_len=args.output_len,
        range_ratio=args.random_range_ratio,
        seed=args.seed,
    )
