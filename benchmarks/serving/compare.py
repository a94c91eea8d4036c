"""Paired comparison: runs several commands in turn (A B C, A B C, ...) and keeps each mode's medians.

Each command prints JSON lines with `engine`, `mode` and figures, as `offline.py` and the rivals' scripts do:

    python benchmarks/serving/compare.py --rounds 3 --out benchmarks/results/w64.json \\
        "python benchmarks/serving/offline.py --modes w64 --repeat 1" "RIVAL COMMAND --modes w64 --repeat 1"

The first command is ours; ratios are ours over theirs, taken round by round, then the median. Modes are compared by
their own metric: output tokens a second of a workload, the same without the prompts for decode, prompt tokens a second
for prefill. A command may lack modes that ours has. `--version ENGINE=TEXT` notes what a rival's records don't say.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# A mode's metric is the first of these that its records have.
METRICS = ("decode_only_tok_s", "prompt_tok_s", "out_tok_s")
# Written down beside it where a record has it.
ALSO = ("e2e_out_tok_s", "total_tok_s", "load_s")
Record = dict[str, Any]


def run(command: str, timeout_s: float) -> dict[str, Record]:
    """Result records of one run, by mode."""
    done = subprocess.run(
        shlex.split(command), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        sys.exit(f"{command}\nexited with {done.returncode}:\n{done.stderr[-2000:]}")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not records:
        sys.exit(f"{command}\nprinted no results:\n{done.stderr[-2000:]}")
    return {r["mode"]: r for r in records}


def metric_of(record: Record) -> str:
    """The name of a mode's metric."""
    found = next((name for name in METRICS if name in record), None)
    if found is None:
        sys.exit(f"a record has none of {', '.join(METRICS)}: {record}")
    return found


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def summarise(
    rounds: list[list[dict[str, Record]]], commands: list[str], versions: dict[str, str]
) -> list[Record]:
    """A row per mode of ours and command that has it."""
    rows: list[Record] = []
    for mode, first in rounds[0][0].items():
        metric = metric_of(first)
        ours = [float(r[0][mode][metric]) for r in rounds]
        for which, command in enumerate(commands):
            records = [r[which][mode] for r in rounds if mode in r[which]]
            if len(records) < len(rounds):
                continue
            theirs = [float(record[metric]) for record in records]
            engine = str(records[0]["engine"])
            rows.append(
                {
                    "mode": mode,
                    "engine": engine,
                    "version": versions.get(engine, records[0].get("version", "")),
                    "metric": metric,
                    "median": statistics.median(theirs),
                    "all": theirs,
                    **{
                        name: statistics.median(float(record[name]) for record in records)
                        for name in ALSO
                        if all(name in record for record in records)
                    },
                    "peak_rss_mb": max(float(record.get("peak_rss_mb", 0)) for record in records),
                    "ours_over_it": round(
                        statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3
                    ),
                    "command": command,
                }
            )
    return rows


def table(rows: list[Record]) -> str:
    """The rows for people."""
    lines = [f"{'mode':<16}{'engine':<24}{'metric':<19}{'median':>8}{'ours / it':>11}{'peak MB':>9}"]
    lines += [
        f"{row['mode']:<16}{row['engine']:<24}{row['metric']:<19}{row['median']:>8.1f}{row['ours_over_it']:>11.3f}"
        f"{row['peak_rss_mb']:>9.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def machine() -> dict[str, str | int]:
    """Where this was measured."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--version", action="append", default=[], metavar="ENGINE=TEXT")
    args = parser.parse_args()
    versions = dict(pair.split("=", 1) for pair in args.version if "=" in pair)
    rounds = []
    for i in range(args.rounds):
        rounds.append([run(command, args.timeout) for command in args.commands])
        print(f"# round {i + 1}/{args.rounds} done", file=sys.stderr, flush=True)
    rows = summarise(rounds, args.commands, versions)
    print(table(rows))
    if args.out:
        result = {"machine": machine(), "rounds": args.rounds, "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
