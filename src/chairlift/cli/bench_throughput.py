"""`chairlift bench throughput`: tokens per second of the engine alone, in this process."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from chairlift.cli.bench_dataset import add_dataset_flags, dataset_spec
from chairlift.cli.flags import add_engine_flags, add_model_option, engine_config
from chairlift.cli.models import resolve_model
from chairlift.cli.paths import check_writable
from chairlift.errors import ConfigError

HELP = "tokens per second of the engine alone, all requests at once"
DESCRIPTION = (
    "Load a model, offer all requests at once and say how many tokens a second come out. Answers have exactly the "
    "length asked for: an end of sequence is ignored."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench throughput`."""
    add_model_option(parser)
    parser.add_argument("--n", type=int, default=1, metavar="N", help="answers per prompt (default: 1)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0, greedy")
    parser.add_argument("--disable-detokenize", action="store_true", help="make no text of the answers")
    parser.add_argument("--output-json", metavar="FILE", help="write the result there, too")
    add_dataset_flags(parser)
    add_engine_flags(parser, text=False)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    if args.n < 1:
        raise ConfigError(f"--n is {args.n}; it must be at least 1")
    if args.output_json:
        check_writable("--output-json", args.output_json)
    spec = dataset_spec(args)
    from chairlift.bench.datasets import load
    from chairlift.bench.throughput import measure
    from chairlift.factory import open_engine, open_front
    from chairlift.sampling_params import SamplingParams

    config = resolve_model(engine_config(args, args.model))
    front = open_front(config)
    engine = open_engine(config)
    try:
        items = load(spec, engine.info.vocab_size)
        params = [
            SamplingParams(
                n=args.n,
                temperature=args.temperature,
                max_tokens=item.max_tokens,
                ignore_eos=True,
                detokenize=not args.disable_detokenize,
            )
            for item in items
        ]
        result = measure(engine, front.tokenizer, items, params, seed=args.seed)
    finally:
        engine.close()
    print(result.text())
    if args.output_json:
        document = {**result.document(), "model": front.model_name, **engine.info.details}
        Path(args.output_json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0
