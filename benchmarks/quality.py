"""What each saving costs: perplexity and logits of variants against a baseline, over the same text.

    python benchmarks/quality.py --variant kv_cache_dtype=f16 --variant kv_cache_dtype=int8
    python benchmarks/quality.py --model FOLDER --variant "quantization=q4 compute_dtype=int8 kv_cache_dtype=f16"

A variant is flags of the engine on top of those of the baseline (f32 activations, f32 KV cache, unless --baseline
says otherwise); all of them are loaded side by side. The text is data/quality.txt, pages of this project's
documentation as they were once, or --text, in windows of --context tokens that start with an empty cache; every logit
is compared. Figures of the same text (its SHA-256 is printed) and model belong together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chairlift.config import EngineConfig
from chairlift.errors import ChairliftError
from chairlift.factory import create_ops, open_front, resolve_model
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.interface import RaggedBatch

TEXT = Path(__file__).parent / "data" / "quality.txt"
BLOCK_SIZE = 16
ROWS = 128  # of a step: the logits of that many tokens are looked at together

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Scorer:
    """A model under one set of flags, and one sequence in its cache."""

    def __init__(self, flags: dict[str, Any], context: int) -> None:
        config = resolve_model(EngineConfig.from_flags(**flags))
        files = open_model_files(str(config.model.model))
        self._ops = create_ops(config.compute, ROWS)
        self._model = load_model(files, self._ops, context, config.model.quantization)
        self._num_blocks = -(-context // BLOCK_SIZE)
        spec = self._model.kv_cache_spec(self._num_blocks, BLOCK_SIZE, config.cache.kv_cache_dtype)
        self._kv = self._ops.allocate_kv_cache(spec)

    def logits(self, ids: list[int], start: int) -> Float32:
        """Append `ids` at position `start`; logits of every one of them: [len(ids), vocab]."""
        rows, stop = len(ids), start + len(ids)
        positions = np.arange(start, stop, dtype=np.int32)
        batch = self._ops.upload_batch(
            RaggedBatch(
                input_ids=np.array(ids, np.int32),
                positions=positions,
                query_start_loc=np.array([0, rows], np.int32),
                seq_lens=np.array([stop], np.int32),
                block_tables=np.arange(self._num_blocks, dtype=np.int32)[None, :],
                slot_mapping=positions.astype(np.int64),
                logits_indices=np.arange(rows, dtype=np.int32),
            )
        )
        return self._ops.to_numpy(batch, self._model.forward(batch, self._kv))

    def close(self) -> None:
        self._ops.close()


@dataclass
class Loss:
    """Sums over all predicted tokens."""

    tokens: int = 0
    surprise: float = 0.0  # of the baseline: -log p(next token)
    variant_surprise: float = 0.0
    divergence: float = 0.0  # KL(baseline || variant)
    same_first: int = 0  # positions where both have the same most likely token
    largest: float = 0.0  # largest difference of a logit

    def add(self, base: Float32, log_p: Float64, variant: Float32, following: list[int]) -> None:
        """Compare logits [rows, vocab]; `log_p` is the baseline's log-softmax, `following[i]` comes after row i."""
        self.largest = max(self.largest, float(np.abs(base - variant).max()))
        self.same_first += int((base.argmax(axis=1) == variant.argmax(axis=1)).sum())
        log_q = _log_softmax(variant)
        at = np.arange(len(following)), np.array(following)
        self.surprise -= float(log_p[at].sum())
        self.variant_surprise -= float(log_q[at].sum())
        self.divergence += float((np.exp(log_p) * (log_p - log_q)).sum())
        self.tokens += len(following)

    def document(self) -> dict[str, float]:
        base, ours = (math.exp(total / self.tokens) for total in (self.surprise, self.variant_surprise))
        return {
            "tokens": self.tokens,
            "baseline_perplexity": base,
            "perplexity": ours,
            "perplexity_change": ours / base - 1.0,
            "largest_logit_difference": self.largest,
            "kl_divergence": self.divergence / self.tokens,
            "same_first_token": self.same_first / self.tokens,
        }


def _log_softmax(logits: Float32) -> Float64:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def compare(base: Scorer, variants: list[Scorer], windows: list[list[int]]) -> list[Loss]:
    """Feed every window to all of them, some rows at a time."""
    losses = [Loss() for _ in variants]
    for number, window in enumerate(windows, 1):
        for start in range(0, len(window) - 1, ROWS):
            following = window[start + 1 : start + 1 + ROWS]
            ids = window[start : start + len(following)]
            logits = base.logits(ids, start)
            log_p = _log_softmax(logits)
            for variant, loss in zip(variants, losses, strict=True):
                loss.add(logits, log_p, variant.logits(ids, start), following)
        print(f"window {number} of {len(windows)}", file=sys.stderr, flush=True)
    return losses


def make_windows(args: argparse.Namespace, text: str) -> list[list[int]]:
    """The text's first windows of whole length, until there are enough tokens."""
    config = EngineConfig.from_flags(model=args.model, tokenizer=args.tokenizer)
    ids, size = open_front(resolve_model(config)).tokenizer.encode(text), args.context
    windows = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    if not windows:
        sys.exit(f"the text has {len(ids)} tokens, fewer than a window of {size} (--context)")
    return windows[: max(1, args.tokens // size)]


def parse_flags(text: str) -> dict[str, Any]:
    """ "a=b c=4" as keywords of `EngineConfig.from_flags`."""
    flags: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            sys.exit(f"{word!r} is no flag; write name=value")
        flags[name.replace("-", "_")] = int(value) if value.isdigit() else value
    return flags


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"baseline: {results[0]['baseline']}, perplexity {results[0]['baseline_perplexity']:.3f} "
        f"over {results[0]['tokens']} tokens",
        "",
        "| variant | perplexity | change | mean KL divergence | same first token | largest logit difference |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['variant']} | {r['perplexity']:.3f} | {r['perplexity_change']:+.2%} | {r['kl_divergence']:.2g} "
        f"| {r['same_first_token']:.2%} | {r['largest_logit_difference']:.2g} |"
        for r in results
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help=".gguf file or Hugging Face folder (default: the default model)")
    parser.add_argument("--tokenizer", help="another one, to compare models over the same tokens")
    parser.add_argument("--baseline", default="kv_cache_dtype=f32", help='flags, "name=value name=value"')
    parser.add_argument("--variant", action="append", required=True, help="flags on top; repeatable")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a window (default: 1024)")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens to read (default: 8192)")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help="default: data/quality.txt")
    parser.add_argument("--output-json", type=Path, help="write the results there, too")
    args = parser.parse_args()
    if not args.text.is_file():
        sys.exit(f"--text {args.text} is not there")
    text = args.text.read_text(encoding="utf-8")
    windows = make_windows(args, text)
    common = {"model": args.model, **parse_flags(args.baseline)}
    base = Scorer(common, args.context)
    variants = [Scorer({**common, **parse_flags(flags)}, args.context) for flags in args.variant]
    losses = compare(base, variants, windows)
    for scorer in (base, *variants):
        scorer.close()
    results = [
        {"variant": flags, "baseline": args.baseline, **loss.document()}
        for flags, loss in zip(args.variant, losses, strict=True)
    ]
    digest = hashlib.sha256(text.encode()).hexdigest()
    print(f"text: {args.text.name}, SHA-256 {digest}")
    print(table(results))
    if args.output_json:
        found = {"text": args.text.name, "sha256": digest, "command": sys.argv, "results": results}
        args.output_json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except ChairliftError as error:
        sys.exit(f"quality.py: {error}")
