"""`chairlift bench lanes`: run a workload for real and draw who rode in which step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chairlift.cli.flags import add_engine_flags, add_model_option, engine_config
from chairlift.cli.models import resolve_model
from chairlift.cli.paths import check_writable
from chairlift.errors import ConfigError

HELP = "draw a run as an SVG: one lane per request, tokens per step below"
DESCRIPTION = (
    "Run a workload on a model and draw it as an SVG: one lane per request, from its arrival over its wait and its "
    "prompt to its last token, and below how many tokens each step computed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench lanes`."""
    add_model_option(parser)
    parser.add_argument("--output", "-o", default="lanes.svg", metavar="FILE", help="default: lanes.svg")
    parser.add_argument("--workload", metavar="FILE", help="JSON file of requests (default: a synthetic mix)")
    parser.add_argument(
        "--requests", type=int, default=24, metavar="N", help="how many of them (default: 24)"
    )
    add_engine_flags(parser, text=False)


def run(args: argparse.Namespace) -> int:
    """Run the workload and write the picture."""
    if args.requests < 1:
        raise ConfigError(f"--requests is {args.requests}; it must be at least 1")
    check_writable("--output", args.output)
    from chairlift.bench.lanes import draw, record
    from chairlift.bench.workload import from_file, synthetic
    from chairlift.factory import open_engine

    engine = open_engine(resolve_model(engine_config(args, args.model)))
    try:
        info = engine.info
        if args.workload:
            items = from_file(args.workload)[: args.requests]
        else:
            items = synthetic(args.requests, vocab_size=info.vocab_size)
        title = f"{info.model_name}: {len(items)} requests board and leave while the lift runs"
        recording = record(engine, items, token_budget=info.max_num_batched_tokens, title=title)
    finally:
        engine.close()
    Path(args.output).write_text(draw(recording), encoding="utf-8")
    tokens = sum(prompt + generated for _, _, prompt, generated in recording.steps)
    print(f"{args.output}: {len(recording.steps)} steps, {tokens} tokens", file=sys.stderr)
    return 0
