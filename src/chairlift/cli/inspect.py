"""`chairlift inspect [MODEL]`: what a model file is, and what `--quantization` would cost each of its tensors."""

from __future__ import annotations

import argparse
import json

from chairlift.cli.flags import add_model_argument, engine_config, named_model
from chairlift.cli.inspect_report import Report, document, text
from chairlift.cli.models import resolve_model
from chairlift.config import QUANTIZATIONS, EngineConfig
from chairlift.errors import ConfigError
from chairlift.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `inspect`."""
    add_model_argument(parser)
    parser.add_argument(
        "--quantization", choices=QUANTIZATIONS, help="also quantise every tensor and say what it loses"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of --quantization (default: the cores we may use)"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """Read the headers, quantise if asked, and print."""
    if args.threads is not None and args.quantization is None:
        raise ConfigError("--threads is for --quantization, which is not given")
    report = _collect(resolve_model(engine_config(args, named_model(args))))
    print(json.dumps(document(report), indent=1) if args.json else text(report))
    return 0


def _collect(config: EngineConfig) -> Report:
    from chairlift.factory import create_ops
    from chairlift.model.files import open_model_files
    from chairlift.model.inspection import inspect_tensors
    from chairlift.model.loader import open_weights
    from chairlift.model.weights.quantized import quantization_notices

    quantization = config.model.quantization
    files = open_model_files(str(config.model.model))
    source = open_weights(files)
    if quantization is None:
        return Report(files, None, list(inspect_tensors(source)), [])
    ops = create_ops(config.compute, 1)
    try:
        tensors = []
        with Progress("Quantising", len(source.names()), "tensors") as progress:
            for tensor in inspect_tensors(source, quantization, ops.quantize):
                tensors.append(tensor)
                progress.advance()
        return Report(files, quantization, tensors, quantization_notices(source, quantization))
    finally:
        ops.close()
