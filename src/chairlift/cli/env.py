"""`chairlift env`: what was found on this machine, to paste into a bug report."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata

from chairlift import __version__
from chairlift.cli import environment

_PACKAGES = ("numpy", "tokenizers", "msgspec", "jinja2", "fastapi", "uvicorn", "pydantic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `env`."""
    parser.add_argument("--json", action="store_true", help="machine-readable")


def run(args: argparse.Namespace) -> int:
    """Print the facts, one a line."""
    facts = collect()
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
    return 0


def collect() -> dict[str, str]:
    """Versions, processor, kernels and memory, as text."""
    from chairlift.factory import describe_backend
    from chairlift.runner.memory import available_memory_bytes

    facts = {
        "chairlift": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores usable": str(len(os.sched_getaffinity(0))),
        "memory available": f"{available_memory_bytes() / 2**30:.1f} GiB",
        "cache folder": environment.cache_dir(),
    }
    facts.update(describe_backend())
    facts.update({name: _version(name) for name in _PACKAGES})
    return facts


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
