"""Flags shared by every command that starts an engine, grouped as `--help` shows them.

Names are vLLM's where it has them.
"""

from __future__ import annotations

import argparse
from typing import Any

from chairlift.config import (
    BACKENDS,
    COMPUTE_DTYPES,
    ISAS,
    KV_CACHE_DTYPES,
    POLICIES,
    QUANTIZATIONS,
    EngineConfig,
    size_in_bytes,
)
from chairlift.errors import ConfigError

_ENGINE_FLAGS = (
    "tokenizer",
    "chat_template",
    "download_dir",
    "max_model_len",
    "quantization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_waiting",
    "scheduling_policy",
    "block_size",
    "kv_cache_dtype",
    "kv_cache_memory",
    "num_kv_blocks",
    "enable_prefix_caching",
    "backend",
    "threads",
    "isa",
    "compute_dtype",
    "seed",
)


def size(text: str) -> int:
    """`chairlift.config.size_in_bytes` for argparse."""
    try:
        return size_in_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model, for the commands whose arguments are something else."""
    parser.add_argument(
        "--model", metavar="PATH", help=".gguf file or Hugging Face folder (default: SmolLM2-135M)"
    )


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, for the commands that are about one, and --model, since it is so called elsewhere."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=".gguf file or Hugging Face folder (default: SmolLM2-135M-Instruct)",
    )
    parser.add_argument("--model", dest="model_flag", metavar="PATH", help="the same as MODEL")


def named_model(args: argparse.Namespace) -> str | None:
    """What `add_model_argument` was given. Raises ConfigError for two different models."""
    models = {model for model in (args.model, args.model_flag) if model is not None}
    if len(models) > 1:
        raise ConfigError(f"MODEL is {args.model} and --model is {args.model_flag}; give one of them")
    return next(iter(models), None)


def add_engine_flags(parser: argparse.ArgumentParser, *, text: bool = True, queue: bool = False) -> None:
    """Add the flags of `EngineConfig`, in groups; each defaults to None, which means the config's default.

    Args:
        text: the command reads and writes text: tokenizer, template, and the seed of requests that have none.
        queue: requests come from outside and may have to be turned away.
    """
    _add_model_flags(parser.add_argument_group("model"), text)
    _add_scheduling_flags(parser.add_argument_group("scheduling"), queue)
    _add_cache_flags(parser.add_argument_group("KV cache"))
    _add_compute_flags(parser.add_argument_group("compute"))
    if text:
        parser.add_argument("--seed", type=int, metavar="N", help="makes unseeded requests reproducible")


def _add_model_flags(group: argparse._ArgumentGroup, text: bool) -> None:
    if text:
        group.add_argument(
            "--tokenizer", metavar="PATH", help="tokenizer.json, folder or .gguf (default: the model's own)"
        )
        group.add_argument(
            "--chat-template", metavar="FILE", help="Jinja file (default: the model's own template)"
        )
    group.add_argument(
        "--download-dir", metavar="DIR", help="where the default model is kept (default: user cache)"
    )
    group.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="context (default: as model and memory allow)"
    )
    group.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        help="round f32, f16 and bf16 weights to 8 or 4 bits while loading (default: as in the file)",
    )


def _add_scheduling_flags(group: argparse._ArgumentGroup, queue: bool) -> None:
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="requests running at once (default: 64)")
    group.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="token budget of a step (default: 256)"
    )
    if queue:
        group.add_argument(
            "--max-num-waiting", type=int, metavar="N", help="queue limit, then 429 (default: 1024)"
        )
    group.add_argument("--scheduling-policy", choices=POLICIES, help="who goes first (default: fcfs)")


def _add_cache_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--block-size", type=int, metavar="TOKENS", help="tokens per block (default: 16)")
    group.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        help="how K and V are stored; int8 takes half of f16, with some loss (default: f16)",
    )
    group.add_argument(
        "--kv-cache-memory",
        type=size,
        metavar="SIZE",
        help="pool size, e.g. 2GiB (default: from free memory)",
    )
    group.add_argument(
        "--num-kv-blocks", type=int, metavar="N", help="exact pool size in blocks, for experiments"
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="reuse the KV of shared prompt prefixes (default: on)",
    )


def _add_compute_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--threads", type=int, metavar="N", help="worker threads (default: the cores we may use)"
    )
    group.add_argument("--backend", choices=BACKENDS, help="native kernels or slow numpy (default: auto)")
    group.add_argument(
        "--compute-dtype",
        choices=COMPUTE_DTYPES,
        help="int8 rounds activations to 8 bits for 4-bit and 8-bit weights: faster, a small loss (default: f32)",
    )
    group.add_argument("--isa", choices=ISAS, help="instruction set of the kernels (default: the best here)")


def engine_config(args: argparse.Namespace, model: str | None) -> EngineConfig:
    """The frozen config from parsed flags; `model` None is the default model (see `cli.models.resolve_model`)."""
    flags: dict[str, Any] = {name: value for name, value in vars(args).items() if name in _ENGINE_FLAGS}
    return EngineConfig.from_flags(model=model, **flags)
