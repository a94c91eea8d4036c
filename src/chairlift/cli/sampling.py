"""Sampling flags shared by `generate` and `chat`."""

from __future__ import annotations

import argparse

from chairlift.sampling_params import SamplingParams


def add_sampling_flags(
    parser: argparse.ArgumentParser, *, max_tokens: int | None, temperature: float
) -> None:
    """Add --max-tokens, --temperature, --top-p, --top-k, --min-p, --repetition-penalty and --stop."""
    group = parser.add_argument_group("sampling")
    shown = "up to the context" if max_tokens is None else max_tokens
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"default: {shown}")
    group.add_argument(
        "--temperature",
        type=float,
        default=temperature,
        metavar="T",
        help=f"0 is greedy (default: {temperature:g})",
    )
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus (default: 1, off)")
    group.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="keep the K most likely (default: 0, off)"
    )
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="relative to the best (default: 0, off)"
    )
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="default: 1, off")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop before this text; repeatable"
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The parameters that the flags describe; `--seed` of the engine flags is the request's seed too."""
    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        stop=args.stop,
        seed=args.seed,
    )
