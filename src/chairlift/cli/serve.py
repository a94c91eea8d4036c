"""`chairlift serve [MODEL]`: the engine process starts first; the web framework is imported while it loads."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import TYPE_CHECKING

from chairlift import __version__
from chairlift.cli import environment
from chairlift.cli.flags import add_engine_flags, add_model_argument, engine_config, named_model
from chairlift.cli.models import resolve_model
from chairlift.cli.paths import check_writable
from chairlift.errors import ConfigError

if TYPE_CHECKING:
    from chairlift.config import EngineConfig
    from chairlift.engine.client import ProcessClient
    from chairlift.engine.types import EngineInfo

ENGINE_ENTRY = "chairlift.factory:build_engine"
_SHOWN = ("backend", "isa", "compute dtype", "threads", "quantization")  # in the banner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    add_model_argument(parser)
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
        "--step-log",
        metavar="FILE",
        help="write one JSON line per engine step: who rode, how many tokens, how long it took",
    )
    server.add_argument(
        "--step-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="a step longer than this is a dead engine (60)",
    )
    server.add_argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="info logs every request (default: warning)",
    )
    add_engine_flags(parser, queue=True)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    if not args.step_timeout > 0:
        raise ConfigError(f"--step-timeout is {args.step_timeout:g}; it must be more than 0 seconds")
    if args.step_log:
        check_writable("--step-log", args.step_log)
    started = time.monotonic()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")  # to stderr
    logging.getLogger("chairlift").setLevel(args.log_level.upper())
    from chairlift.engine.client import ProcessClient

    config = resolve_model(engine_config(args, named_model(args)))
    client = ProcessClient(ENGINE_ENTRY, config)
    client.spawn()  # it reads the weights while the imports of `_serve` run
    try:
        return _serve(args, config, client, started)
    finally:
        client.close()


def _serve(args: argparse.Namespace, config: EngineConfig, client: ProcessClient, started: float) -> int:
    from chairlift.engine.frontend import AsyncFrontend
    from chairlift.engine.step_log import StepLog
    from chairlift.factory import open_front
    from chairlift.server.app import create_app
    from chairlift.server.run import run_server

    front = open_front(config)
    frontend = AsyncFrontend(
        client,
        front.tokenizer,
        seed=config.seed,
        step_timeout=args.step_timeout,
        step_log=StepLog(args.step_log) if args.step_log else None,
    )
    names = args.served_model_name or [front.model_name]
    app = create_app(
        frontend,
        front.tokenizer,
        front.chat_template,
        served_model_names=names,
        version=__version__,
        api_keys=args.api_key or environment.api_keys(),
    )

    def announce(url: str) -> None:
        print(_banner(frontend.info, names[0], url, time.monotonic() - started), file=sys.stderr, flush=True)

    return run_server(app, host=args.host, port=args.port, log_level=args.log_level, on_ready=announce)


def _banner(info: EngineInfo, name: str, url: str, seconds: float) -> str:
    """What a person wants to know at start, and what to type next."""
    size = info.details["kv pool MiB"]
    pool = f"{info.num_kv_blocks} blocks of {info.block_size} tokens, {info.kv_cache_dtype}, {size} MiB"
    shown = {"backend": info.backend, **info.details}  # the rest is for `chairlift env`
    compute = ", ".join(f"{key} {shown[key]}" for key in _SHOWN if key in shown)
    lines = [
        f"Chairlift {__version__} serves {name} on {url} (ready in {seconds:.1f} s)",
        f"  context {info.max_model_len} tokens; up to {info.max_num_seqs} requests and "
        f"{info.max_num_batched_tokens} tokens a step",
        f"  KV cache {pool}; {compute}",
        *(f"  note: {notice}" for notice in info.notices),
        f"  try: curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        """-d '{"messages": [{"role": "user", "content": "Hi"}]}'""",
    ]
    return "\n".join(lines)
