"""The control groups (Linux cgroups, version 2 and 1) above this process, and the limits that they set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
ROOT = Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # version 1 writes "no limit" of memory as a number near 2^63


class Group(NamedTuple):
    """A group's folder of control files, whose names depend on the version."""

    folder: Path
    version: int


def groups_above(controller: str, proc: Path = PROC, root: Path = ROOT) -> Iterator[Group]:
    """This process's group and its parents up to `root`: in a container the path may start elsewhere."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _up_from(root, path, 2)
        elif controller in controllers.split(","):
            yield from _up_from(root / controller, path, 1)


def memory_limit_bytes(group: Group) -> int | None:
    """Bytes that the group may use; None = no limit."""
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    most = read_number(group.folder / name)
    return None if most is None or most >= UNLIMITED else most


def cpu_limit(group: Group) -> float | None:
    """Cores whose time the group may use, e.g. 1.5; None = no limit."""
    if group.version == 1:
        quota = read_number(group.folder / "cpu.cfs_quota_us")
        period = read_number(group.folder / "cpu.cfs_period_us")
    else:
        quota, period = _quota_and_period(group.folder / "cpu.max")
    return quota / period if quota and period and quota > 0 else None


def read_number(path: Path) -> int | None:
    """The number in a control file; None when it is absent or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _up_from(root: Path, path: str, version: int) -> Iterator[Group]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield Group(root.joinpath(*parts[:depth]), version)


def _quota_and_period(path: Path) -> tuple[int | None, int | None]:
    """Of a file that says "150000 100000" or "max 100000"."""
    try:
        quota, period = map(int, path.read_text().split())
    except (OSError, ValueError):
        return None, None
    return quota, period
