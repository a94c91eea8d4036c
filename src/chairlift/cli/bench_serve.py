"""`chairlift bench serve`: a load generator for any OpenAI-compatible server, and vLLM's report."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chairlift.cli.bench_dataset import add_dataset_flags, dataset_spec
from chairlift.cli.paths import check_writable
from chairlift.errors import ChairliftError, ConfigError

if TYPE_CHECKING:
    from chairlift.bench.load import LoadResult, Template, Traffic
    from chairlift.bench.serving_report import ReportOptions
    from chairlift.bench.stream_client import Endpoint
    from chairlift.bench.workload import WorkItem

HELP = "throughput and latency of a running server under load"
DESCRIPTION = (
    "Send streamed requests to an OpenAI-compatible server and report throughput and latencies as vLLM's "
    "`bench serve` does."
)
ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
_WARMUP_TOKENS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench serve`."""
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", metavar="URL", help="instead of --host and --port")
    server.add_argument("--host", help="default: 127.0.0.1")
    server.add_argument("--port", type=int, help="default: 8000")
    server.add_argument(
        "--endpoint", choices=ENDPOINTS, default=ENDPOINTS[0], help=f"default: {ENDPOINTS[0]}"
    )
    server.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    server.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="sent with every request; repeatable",
    )
    server.add_argument(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="more fields for every request"
    )
    server.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0, greedy")
    server.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of exactly the length wanted (default: yes)",
    )
    server.add_argument(
        "--vocab-size",
        type=int,
        default=32000,
        metavar="N",
        help="bound of random token ids (default: 32000)",
    )
    _add_traffic_flags(parser)
    _add_report_flags(parser)
    add_dataset_flags(parser)


def _add_traffic_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--request-rate", type=float, default=math.inf, metavar="RPS", help="default: inf, all at once"
    )
    group.add_argument(
        "--burstiness",
        type=float,
        metavar="B",
        help="of --request-rate: 1 is Poisson, less is burstier (default: 1)",
    )
    group.add_argument("--self-timed", action="store_true", help="send at the arrival times of the data set")
    group.add_argument(
        "--max-concurrency", type=int, metavar="N", help="requests at a time (default: any number)"
    )
    group.add_argument(
        "--request-timeout",
        type=float,
        default=6 * 3600.0,
        metavar="S",
        help="of one request (default: 6 hours)",
    )
    group.add_argument(
        "--num-warmups", type=int, default=1, metavar="N", help="short requests before (default: 1)"
    )


def _add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl", metavar="LIST", help="of ttft, tpot, itl, e2el"
    )
    group.add_argument(
        "--metric-percentiles", default="99", metavar="LIST", help="e.g. 50,90,99 (default: 99)"
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="METRIC:MS",
        help="limits of a good request, of ttft, tpot, e2el, e.g. ttft:500 tpot:50",
    )
    group.add_argument("--save-result", action="store_true", help="write a JSON file with vLLM's keys")
    group.add_argument("--save-detailed", action="store_true", help="with an entry for each request in it")
    group.add_argument("--result-dir", metavar="DIR", help="default: the current folder")
    group.add_argument("--result-filename", metavar="FILE", help="default: from rate, model and time")


def run(args: argparse.Namespace) -> int:
    """Measure and print; exit code 1 when every request failed."""
    spec = dataset_spec(args)
    _check(args)
    options = _report_options(args)
    target = _result_path(args) if args.save_result else None
    from chairlift.bench import serving_report
    from chairlift.bench.datasets import load
    from chairlift.bench.load import Traffic

    traffic = Traffic(
        args.request_rate,
        1.0 if args.burstiness is None else args.burstiness,
        args.self_timed,
        args.max_concurrency,
        args.request_timeout,
        args.seed,
    )
    items = load(spec, args.vocab_size)
    if args.self_timed and not any(item.arrival_s for item in items):
        raise ConfigError("--self-timed: the requests of this data set have no arrival times")
    endpoint, template = _endpoint(args, args.endpoint), _template(args)
    done = asyncio.run(_offer(endpoint, template, items, traffic, args.num_warmups))
    result = serving_report.document(done, options)
    failures = serving_report.errors(done.outcomes)
    if failures:
        print(failures)
    print(serving_report.text(result, traffic, options))
    if target is not None:
        more = serving_report.details(done) if args.save_detailed else {}
        _save(target, {**_settings(traffic, template.model, len(items)), **result, **more})
    return 0 if result["completed"] else 1


async def _offer(
    endpoint: Endpoint, template: Template, items: list[WorkItem], traffic: Traffic, num_warmups: int
) -> LoadResult:
    from chairlift.bench.load import Traffic, offer
    from chairlift.bench.workload import WorkItem
    from chairlift.progress import Progress

    warmup = WorkItem(items[0].prompt_token_ids[:8], _WARMUP_TOKENS)
    warm = await offer(endpoint, template, [warmup] * num_warmups, Traffic())
    for outcome in warm.outcomes:
        if outcome.error is not None:
            raise ChairliftError(
                f"the first request failed, nothing was measured: {outcome.error} "
                "(random prompts have token ids below --vocab-size)"
            )
    with Progress("Serving", len(items), "requests") as progress:
        return await offer(endpoint, template, items, traffic, progress.advance)


def _check(args: argparse.Namespace) -> None:
    limits: tuple[tuple[str, float | None, float], ...] = (
        ("--burstiness", args.burstiness, 0),
        ("--request-rate", args.request_rate, 0),
        ("--request-timeout", args.request_timeout, 0),
        ("--max-concurrency", args.max_concurrency, 0),
        ("--num-warmups", args.num_warmups, -1),
        ("--vocab-size", args.vocab_size, 100),
    )
    for flag, value, above in limits:
        if value is not None and not value > above:
            raise ConfigError(f"{flag} is {value:g}; it must be more than {above:g}")
    if args.self_timed and args.request_rate != math.inf:
        raise ConfigError("--self-timed takes the arrivals of the data set; drop --request-rate")
    if args.burstiness is not None and args.request_rate == math.inf:
        raise ConfigError("--burstiness shapes the gaps of --request-rate, which is not given")
    if args.base_url is not None and (args.host is not None or args.port is not None):
        raise ConfigError("--base-url stands instead of --host and --port; give one or the other")
    wanted = [flag for flag in ("save_detailed", "result_dir", "result_filename") if getattr(args, flag)]
    if wanted and not args.save_result:
        raise ConfigError(f"--{wanted[0].replace('_', '-')} needs --save-result")


def _report_options(args: argparse.Namespace) -> ReportOptions:
    from chairlift.bench.serving_report import METRICS, ReportOptions

    metrics = args.percentile_metrics.split(",")
    wrong = [name for name in metrics if name not in METRICS]
    if wrong:
        raise ConfigError(f"--percentile-metrics has {wrong[0]!r}; known are {', '.join(METRICS)}")
    percentiles = [_number("--metric-percentiles", text) for text in args.metric_percentiles.split(",")]
    if max(percentiles) > 100:
        raise ConfigError(f"--metric-percentiles has {max(percentiles):g}; it must be in [0, 100]")
    goodput = {}
    for pair in args.goodput:
        name, _, limit = pair.partition(":")
        if name not in ("ttft", "tpot", "e2el"):
            raise ConfigError(f"--goodput has {pair!r}; write METRIC:MS with ttft, tpot or e2el")
        goodput[name] = _number("--goodput", limit)
    return ReportOptions(metrics, percentiles, goodput)


def _number(flag: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise ConfigError(f"{flag} has {text!r}; it must be a number from 0 up")
    return number


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("it must be a JSON object")
    return value


def _endpoint(args: argparse.Namespace, path: str) -> Endpoint:
    from chairlift.bench.stream_client import Endpoint

    headers = []
    for item in args.header:
        name, equals, value = item.partition("=")
        if not equals or not name.strip() or any(char in item for char in "\r\n"):
            raise ConfigError(f"--header has {item!r}; write NAME=VALUE")
        headers.append((name.strip(), value.strip()))
    host, port = args.host or "127.0.0.1", args.port or 8000
    url = args.base_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return Endpoint.of(url, path, tuple(headers))


def _template(args: argparse.Namespace) -> Template:
    from chairlift.bench.load import Template

    model = args.model or asyncio.run(_first_model(_endpoint(args, "/v1/models")))
    extra = {"temperature": args.temperature, **args.extra_body}
    return Template(model, args.endpoint == ENDPOINTS[1], args.ignore_eos, extra)


async def _first_model(endpoint: Endpoint) -> str:
    from chairlift.bench.http_stream import HttpError
    from chairlift.bench.stream_client import fetch

    where = f"http://{endpoint.host}:{endpoint.port}"
    try:
        name = (await fetch(endpoint, timeout_s=30.0))["data"][0]["id"]
    except (OSError, HttpError, asyncio.TimeoutError) as error:
        raise ChairliftError(f"no server at {where} ({error}); start one, or give --base-url") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ChairliftError(f"{where} lists no model ({error!r}); give --model") from error
    return str(name)


def _result_path(args: argparse.Namespace) -> Path:
    limit = "" if args.max_concurrency is None else f"-concurrency{args.max_concurrency}"
    name = (
        args.result_filename
        or f"openai-{args.request_rate:g}qps{limit}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    )
    path = Path(args.result_dir or ".") / name
    check_writable("--result-filename" if args.result_filename else "--result-dir", str(path))
    return path


def _settings(traffic: Traffic, model: str, num_prompts: int) -> dict[str, Any]:
    """The head of vLLM's result file."""
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai",
        "model_id": model,
        "num_prompts": num_prompts,
        "request_rate": "inf" if traffic.request_rate == math.inf else traffic.request_rate,
        "burstiness": traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
    }


def _save(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"saved {path}", file=sys.stderr)
