"""Flags shared by every command that starts an engine, grouped as `--help` shows them.

Names are vLLM's where it has them.
"""

from __future__ import annotations

import argparse
from typing import Any

from chairlift.config import BACKENDS, ISAS, KV_CACHE_DTYPES, POLICIES, EngineConfig, size_in_bytes
from chairlift.errors import ConfigError

_ENGINE_FLAGS = (
    "tokenizer",
    "chat_template",
    "download_dir",
    "max_model_len",
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
    "seed",
)


def size(text: str) -> int:
    """`chairlift.config.size_in_bytes` for argparse."""
    try:
        return size_in_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `EngineConfig`, in groups; each defaults to None, which means the config's default."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--tokenizer", metavar="PATH", help="tokenizer.json, folder or .gguf (default: the model's own)"
    )
    model.add_argument(
        "--chat-template", metavar="FILE", help="Jinja file (default: the model's own template)"
    )
    model.add_argument(
        "--download-dir", metavar="DIR", help="where the default model is kept (default: user cache)"
    )
    model.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="context (default: as model and memory allow)"
    )

    schedule = parser.add_argument_group("scheduling")
    schedule.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="requests running at once (default: 64)"
    )
    schedule.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="token budget of a step (default: 256)"
    )
    schedule.add_argument(
        "--max-num-waiting", type=int, metavar="N", help="queue limit, then 429 (default: 1024)"
    )
    schedule.add_argument("--scheduling-policy", choices=POLICIES, help="who goes first (default: fcfs)")

    cache = parser.add_argument_group("KV cache")
    cache.add_argument("--block-size", type=int, metavar="TOKENS", help="tokens per block (default: 16)")
    cache.add_argument(
        "--kv-cache-dtype", choices=KV_CACHE_DTYPES, help="how K and V are stored (default: f16)"
    )
    cache.add_argument(
        "--kv-cache-memory",
        type=size,
        metavar="SIZE",
        help="pool size, e.g. 2GiB (default: from free memory)",
    )
    cache.add_argument(
        "--num-kv-blocks", type=int, metavar="N", help="exact pool size in blocks, for experiments"
    )
    cache.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="reuse the KV of shared prompt prefixes (default: on)",
    )

    compute = parser.add_argument_group("compute")
    compute.add_argument(
        "--threads", type=int, metavar="N", help="worker threads (default: the cores we may use)"
    )
    compute.add_argument("--backend", choices=BACKENDS, help="native kernels or slow numpy (default: auto)")
    compute.add_argument(
        "--isa", choices=ISAS, help="instruction set of the kernels (default: the best here)"
    )
    compute.add_argument("--seed", type=int, metavar="N", help="makes unseeded requests reproducible")


def engine_config(args: argparse.Namespace, model: str | None) -> EngineConfig:
    """The frozen config from parsed flags; `model` None is the default model (see `cli.models.resolve_model`)."""
    flags: dict[str, Any] = {name: getattr(args, name) for name in _ENGINE_FLAGS}
    return EngineConfig.from_flags(model=model, **flags)
