"""Offline throughput of Chairlift on the workloads that the rivals' scripts run: w64, w16, decode, prefill.

    python benchmarks/serving/offline.py --workloads ../shared/peers --modes w64,w16,decode,prefill --repeat 3

Prints one JSON line per mode, named and counted as the rivals' scripts do it (medians of the repeats):

    w64, w16        out_tok_s, total_tok_s: output, or all, tokens over the wall time
    decode N=...    N prompts of 32 tokens, 64 tokens each. e2e_out_tok_s: N * 64 over the wall time;
                    decode_only_tok_s: N * 63 over what that takes longer than the same with one token each
    prefill 1x1024  prompt_tok_s: prompt tokens over the wall time to one token each (and 4x512)

All requests are offered at once, greedy, output lengths forced, prefix cache off, as the rivals are run. Flags named
as those of `chairlift serve` are handed on.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from chairlift import LLM, SamplingParams, __version__

VOCAB = 49152
# Flags of the engine that are handed on.
KNOBS: dict[str, type] = {
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "threads": int,
    "isa": str,
    "compute_dtype": str,
    "kv_cache_dtype": str,
    "quantization": str,
}
DECODE_PROMPT, DECODE_TOKENS = 32, 64
PREFILLS = ((1, 1024), (4, 512))


def load_workload(folder: Path, number: int) -> list[tuple[list[int], int]]:
    path = folder / f"w{number}.json"
    if not path.exists():
        sys.exit(f"{path} is not there; give the folder of the workload files with --workloads")
    requests = json.loads(path.read_text())["requests"]
    return [(r["prompt_token_ids"], r["max_tokens"]) for r in requests]


def synthetic(number: int, prompt_len: int, max_tokens: int, seed: int = 1) -> list[tuple[list[int], int]]:
    rng = random.Random(seed)
    return [([rng.randrange(17, VOCAB) for _ in range(prompt_len)], max_tokens) for _ in range(number)]


def run_once(llm: LLM, requests: list[tuple[list[int], int]]) -> float:
    """Seconds for all requests; checks that every answer has the forced length."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False)
        for _, n in requests
    ]
    started = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids, _ in requests], params, use_tqdm=False)
    wall = time.perf_counter() - started
    wrong = sum(len(o.outputs[0].token_ids) != n for o, (_, n) in zip(outputs, requests, strict=True))
    if wrong:
        sys.exit(f"{wrong} answers have the wrong length")
    return wall


def peak_rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def workload(llm: LLM, requests: list[tuple[list[int], int]], repeat: int) -> dict[str, Any]:
    """Figures of w64 and w16."""
    walls = [run_once(llm, requests) for _ in range(repeat)]
    wall = statistics.median(walls)
    out, prompt = sum(n for _, n in requests), sum(len(ids) for ids, _ in requests)
    return {
        "wall_s": round(wall, 2),
        "walls": [round(w, 2) for w in walls],
        "out_tok_s": round(out / wall, 1),
        "total_tok_s": round((out + prompt) / wall, 1),
    }


def decode(llm: LLM, number: int, repeat: int) -> dict[str, Any]:
    """Figures of `number` sequences; other prompts in each repeat, as with the rivals."""
    whole, after_first = [], []
    for seed in range(100, 100 + repeat):
        first = run_once(llm, synthetic(number, DECODE_PROMPT, 1, seed))
        wall = run_once(llm, synthetic(number, DECODE_PROMPT, DECODE_TOKENS, seed))
        whole.append(number * DECODE_TOKENS / wall)
        after_first.append(number * (DECODE_TOKENS - 1) / (wall - first))
    return {
        "e2e_out_tok_s": round(statistics.median(whole), 1),
        "decode_only_tok_s": round(statistics.median(after_first), 1),
        "e2e": [round(x, 1) for x in whole],
        "dec": [round(x, 1) for x in after_first],
    }


def prefill(llm: LLM, number: int, length: int, repeat: int) -> dict[str, Any]:
    """Figures of `number` prompts of `length` tokens; at least two repeats, as with the rivals."""
    seeds = range(200, 200 + max(repeat, 2))
    speeds = [number * length / run_once(llm, synthetic(number, length, 1, seed)) for seed in seeds]
    return {"prompt_tok_s": round(statistics.median(speeds), 1), "all": [round(x, 1) for x in speeds]}


def measurements(
    args: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[LLM], dict[str, Any]]]]:
    """(mode, what gives its figures) of everything that was asked for."""
    for mode in args.modes.split(","):
        if mode in ("w64", "w16"):
            yield (
                mode,
                partial(workload, requests=load_workload(args.workloads, int(mode[1:])), repeat=args.repeat),
            )
        elif mode == "decode":
            for n in map(int, args.decode_n.split(",")):
                yield f"decode N={n}", partial(decode, number=n, repeat=args.repeat)
        elif mode == "prefill":
            for n, length in PREFILLS:
                yield f"prefill {n}x{length}", partial(prefill, number=n, length=length, repeat=args.repeat)
        else:
            sys.exit(f"unknown mode {mode!r}: w64, w16, decode, prefill")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=None)
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parents[3] / "shared" / "peers")
    parser.add_argument("--modes", default="w64")
    parser.add_argument("--decode-n", default="1,4,16,64")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tag", default="", help="added to the engine's name, e.g. -int8")
    for name, kind in KNOBS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=None)
    args = parser.parse_args()
    flags = {name: getattr(args, name) for name in KNOBS if getattr(args, name) is not None}
    with LLM(args.model, enable_prefix_caching=False, **flags) as llm:
        run_once(llm, synthetic(2, 16, 4, seed=9))  # warm-up
        for mode, measure in list(measurements(args)):
            figures = measure(llm)
            record = {
                "engine": f"chairlift{args.tag}",
                "mode": mode,
                **figures,
                "peak_rss_mb": round(peak_rss_mb()),
                "version": __version__,
                "backend": llm.info.backend,
                **llm.info.details,
            }
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
