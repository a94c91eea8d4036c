"""`chairlift bench step`: one steady step of a mix, and where its time goes."""

from __future__ import annotations

import argparse
import json

from chairlift.cli.flags import add_engine_flags, add_model_option, engine_config
from chairlift.cli.models import resolve_model
from chairlift.errors import ConfigError

HELP = "one step of a given mix: its time, and with --profile where it goes"
DESCRIPTION = (
    "Bring an engine into a steady mix of running requests and prompt tokens, and say how long a step takes. With "
    "--profile: time of each operator and its share of what this machine can do at most, then the time outside "
    "the operators, by part. `encode` is the frame that goes to the front end under `serve`."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench step`."""
    add_model_option(parser)
    parser.add_argument(
        "--running", type=int, default=32, metavar="N", help="decoding requests (default: 32)"
    )
    parser.add_argument(
        "--context", type=int, default=64, metavar="L", help="tokens that each of them holds (default: 64)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=0, metavar="P", help="a prompt in every step (default: 0, none)"
    )
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="steps to measure (default: 40)")
    parser.add_argument(
        "--profile", action="store_true", help="operator by operator; probes the machine before and after"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    add_engine_flags(parser, text=False)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    _check(args)
    from chairlift.bench.step import StepMix, measure, profile
    from chairlift.bench.step_table import document, machine_line, text
    from chairlift.factory import open_engine

    mix = StepMix(args.running, args.context, args.prompt_tokens)
    engine = open_engine(resolve_model(engine_config(args, args.model)))
    try:
        if args.profile:
            report, limits = profile(engine, mix, steps=args.steps)
        else:
            report, limits = measure(engine, mix, steps=args.steps), None
    finally:
        engine.close()
    details = engine.info.details
    if args.json:
        print(json.dumps({"model": engine.info.model_name, **details, **document(report, limits)}, indent=1))
        return 0
    where = ", ".join(
        f"{name} {details[name]}" for name in ("isa", "compute dtype", "threads") if name in details
    )
    print(f"{engine.info.model_name}: {where or engine.info.backend}")
    if limits:
        print(machine_line(limits))
    print(text(report, int(details.get("threads", "1"))))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, least in (("running", 0), ("context", 1), ("prompt_tokens", 0), ("steps", 1)):
        value = getattr(args, name)
        if value < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    if args.running + args.prompt_tokens == 0:
        raise ConfigError("--running and --prompt-tokens are both 0; a step needs a token")
