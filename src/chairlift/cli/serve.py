"""`chairlift serve [MODEL]`: starts the engine process first, then (while it loads the weights) the web framework."""

from __future__ import annotations

import argparse
import sys

from chairlift.cli import environment
from chairlift.cli.flags import add_engine_flags, engine_config
from chairlift.cli.models import resolve_model

ENGINE_ENTRY = "chairlift.factory:build_engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    parser.add_argument(
        "model", nargs="?", help=".gguf file or Hugging Face folder (default: SmolLM2-135M-Instruct)"
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, help="0 picks a free one (default: 8000)")
    server.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="clients must send it; repeatable (or $CHAIRLIFT_API_KEY)",
    )
    server.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name in the API; repeatable (default: model's)",
    )
    server.add_argument(
        "--step-log", metavar="FILE", help="write one JSON line per engine step, for `bench lanes`"
    )
    server.add_argument(
        "--step-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="a step longer than this is a dead engine (60)",
    )
    server.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from chairlift.engine.client import ProcessClient

    config = resolve_model(engine_config(args, args.model))
    client = ProcessClient(ENGINE_ENTRY, config)
    client.spawn()  # it reads the weights while the imports below run
    try:
        return _serve(args, config, client)
    finally:
        client.close()
