"""Paired comparison: runs several commands in turn (A B C, A B C, ...) and keeps each mode's medians.

Each command prints JSON lines with `engine`, `mode` and `out_tok_s`, as `offline.py` and the rivals' scripts do:

    python benchmarks/serving/compare.py --rounds 3 --out benchmarks/results/w64.json \\
        "python benchmarks/serving/offline.py --modes w64 --repeat 1" "RIVAL COMMAND --modes w64 --repeat 1"

The first command is ours; ratios are ours over theirs, taken round by round, then the median.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path


def run(command: str, timeout_s: float) -> dict[str, dict[str, float | str]]:
    """Result records of one run, by mode."""
    done = subprocess.run(
        shlex.split(command), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        sys.exit(f"{command}\nexited with {done.returncode}:\n{done.stderr[-2000:]}")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {r["mode"]: r for r in records}


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def summarise(
    rounds: list[list[dict[str, dict[str, float | str]]]], commands: list[str]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for mode in rounds[0][0]:
        for which, command in enumerate(commands):
            ours = [float(r[0][mode]["out_tok_s"]) for r in rounds]
            theirs = [float(r[which][mode]["out_tok_s"]) for r in rounds]
            rows.append(
                {
                    "mode": mode,
                    "engine": rounds[0][which][mode]["engine"],
                    "out_tok_s": statistics.median(theirs),
                    "all": theirs,
                    "peak_rss_mb": max(float(r[which][mode].get("peak_rss_mb", 0)) for r in rounds),
                    "ours_over_it": round(
                        statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3
                    ),
                    "command": command,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rounds = []
    for i in range(args.rounds):
        rounds.append([run(command, args.timeout) for command in args.commands])
        print(f"# round {i + 1}/{args.rounds} done", file=sys.stderr, flush=True)
    rows = summarise(rounds, args.commands)
    print(f"{'mode':<16}{'engine':<28}{'out tok/s':>10}{'ours / it':>11}{'peak MB':>9}")
    for row in rows:
        print(
            f"{row['mode']:<16}{row['engine']:<28}{row['out_tok_s']:>10}{row['ours_over_it']:>11}"
            f"{row['peak_rss_mb']:>9.0f}"
        )
    if args.out:
        machine = {"cpu": cpu_name(), "platform": platform.platform(), "when": time.strftime("%Y-%m-%d")}
        args.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
