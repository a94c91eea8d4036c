"""Offline throughput of Chairlift on the workloads that the rivals' scripts run: w64, w16, decode, prefill.

    python benchmarks/serving/offline.py --workloads ../shared/peers --modes w64,w16,decode,prefill --repeat 3

Prints one JSON line per mode: output tokens per second (median of the repeats), total tokens per second, peak memory.
All requests are offered at once, greedy, output lengths forced, prefix cache off, as the rivals are run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

from chairlift import LLM, SamplingParams

VOCAB = 49152
# Flags that are passed on as they are.
KNOBS = ("max_num_batched_tokens", "max_num_seqs", "threads", "isa", "compute_dtype")


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


def measure(llm: LLM, name: str, requests: list[tuple[list[int], int]], repeat: int) -> None:
    walls = [run_once(llm, requests) for _ in range(repeat)]
    wall = statistics.median(walls)
    out, prompt = sum(n for _, n in requests), sum(len(ids) for ids, _ in requests)
    record = {
        "engine": "chairlift",
        "mode": name,
        "wall_s": round(wall, 2),
        "walls": [round(w, 2) for w in walls],
        "out_tok_s": round(out / wall, 1),
        "total_tok_s": round((out + prompt) / wall, 1),
        "peak_rss_mb": round(peak_rss_mb()),
        "backend": llm.info.backend,
        **llm.info.details,
    }
    print(json.dumps(record), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parents[3] / "shared" / "peers")
    parser.add_argument("--modes", default="w64")
    parser.add_argument("--decode-n", default="1,4,16,64")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--max-num-batched-tokens", type=int, default=None)
    parser.add_argument("--max-num-seqs", type=int, default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--compute-dtype", default=None)
    args = parser.parse_args()
    flags = {k: getattr(args, k) for k in KNOBS}
    with LLM(
        args.model, enable_prefix_caching=False, **{k: v for k, v in flags.items() if v is not None}
    ) as llm:
        run_once(llm, synthetic(2, 16, 4, seed=9))  # warm-up
        for mode in args.modes.split(","):
            if mode in ("w64", "w16"):
                measure(llm, mode, load_workload(args.workloads, int(mode[1:])), args.repeat)
            elif mode == "decode":
                for n in map(int, args.decode_n.split(",")):
                    measure(llm, f"decode-{n}", synthetic(n, 32, 64), args.repeat)
            elif mode == "prefill":
                measure(llm, "prefill-1x1024", synthetic(1, 1024, 1), args.repeat)
                measure(llm, "prefill-4x512", synthetic(4, 512, 1), args.repeat)
            else:
                sys.exit(f"unknown mode {mode!r}: w64, w16, decode, prefill")


if __name__ == "__main__":
    main()
