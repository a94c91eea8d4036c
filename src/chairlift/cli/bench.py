"""`chairlift bench KIND`: measurements, each kind in a module of its own."""

from __future__ import annotations

import argparse

from chairlift.cli import bench_lanes, bench_serve, bench_step, bench_throughput
from chairlift.errors import ConfigError, RequestError

# A module has HELP, DESCRIPTION, add_arguments(parser) and run(args) -> int.
_KINDS = {
    "throughput": bench_throughput,
    "serve": bench_serve,
    "step": bench_step,
    "lanes": bench_lanes,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of `bench`."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, module in _KINDS.items():
        kind = kinds.add_parser(
            name,
            usage=f"chairlift bench {name} [options]",
            help=module.HELP,
            description=module.DESCRIPTION,
        )
        module.add_arguments(kind)


def run(args: argparse.Namespace) -> int:
    """Run the kind that was named."""
    try:
        return int(_KINDS[args.kind].run(args))
    except RequestError as error:  # its requests are made of its own flags and files
        raise ConfigError(str(error)) from error
