"""`chairlift env`: what was found on this machine and what is bound to it, to paste into a bug report."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata
from pathlib import Path

from chairlift import __version__
from chairlift.cli import environment

_PACKAGES = ("numpy", "tokenizers", "msgspec", "jinja2", "fastapi", "uvicorn", "pydantic")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `env`."""
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument(
        "--probe",
        action="store_true",
        help="also measure what this machine can do at most, about two seconds",
    )


def run(args: argparse.Namespace) -> int:
    """Print the facts, one a line."""
    facts = collect()
    if args.probe:
        facts.update(probe())
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
        "cgroup cpu limit": _cpu_limit(),
        "cgroup memory limit": _memory_limit(),
        "memory available": _gib(available_memory_bytes()),
        "huge pages": describe_huge_pages(),
        "cache folder": environment.cache_dir(),
    }
    facts.update(describe_backend())
    facts.update({name: _version(name) for name in _PACKAGES})
    return facts


def probe() -> dict[str, str]:
    """What this machine can do at most, with the threads and the instructions that `auto` takes."""
    from chairlift.factory import measure_machine

    limits = measure_machine()
    if limits is None:
        return {"probe": "needs the native kernels"}
    return {
        "probe: f32 fma": f"{limits.flops / 1e9:.1f} GFLOP/s",
        "probe: int8 products": f"{limits.int8_ops / 1e9:.1f} Gop/s",
        "probe: reads": f"{limits.read_bytes / 1e9:.1f} GB/s",
    }


def describe_huge_pages(setting: Path = _HUGE_PAGES) -> str:
    """What the kernel does with requests for huge pages, from its file "always [madvise] never"."""
    try:
        words = setting.read_text().split()
    except OSError:
        return "unknown to this system"
    chosen = next((word.strip("[]") for word in words if word.startswith("[")), "unknown")
    told = {"never": "weights lie in small pages, slower to read", "unknown": "the kernel's file says none"}
    return f"{chosen} ({told.get(chosen, 'weights and the KV pool ask for them')})"


def _cpu_limit() -> str:
    from chairlift.runner.control_groups import cpu_limit, groups_above

    limits = [limit for group in groups_above("cpu") if (limit := cpu_limit(group)) is not None]
    return f"{min(limits):g} cores" if limits else "none"


def _memory_limit() -> str:
    from chairlift.runner.control_groups import groups_above, memory_limit_bytes

    limits = [limit for group in groups_above("memory") if (limit := memory_limit_bytes(group)) is not None]
    return _gib(min(limits)) if limits else "none"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


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
