"""Limits of control groups, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.runner.control_groups import cpu_limit, groups_above, memory_limit_bytes


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "150000 100000\n"}, [1.5, None]),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "max 100000\n"}, [None, None]),
        (
            {
                "proc/self/cgroup": "7:cpuset:/z\n5:cpu,cpuacct:/x\n",
                "cgroup/cpu/x/cpu.cfs_quota_us": "50000\n",
                "cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            [0.5, None],
        ),
    ],
    ids=["no groups", "version 2", "version 2 without a limit", "version 1"],
)
def test_cpu_limits(files: dict[str, str], expected: list[float | None], tmp_path: Path) -> None:
    """Cores of each group, nearest first; "max" and -1 are no limit."""
    write(tmp_path, files)
    groups = groups_above("cpu", tmp_path / "proc", tmp_path / "cgroup")
    assert [cpu_limit(group) for group in groups] == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "5000\n"}, [5000, None]),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "max\n"}, [None, None]),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n",
                "cgroup/memory/x/memory.limit_in_bytes": "7000",
                "cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            [7000, None],
        ),
    ],
    ids=["version 2", "version 2 without a limit", "version 1"],
)
def test_memory_limits(files: dict[str, str], expected: list[int | None], tmp_path: Path) -> None:
    """Bytes of each group, nearest first; "max" and numbers near 2^63 are no limit."""
    write(tmp_path, files)
    groups = groups_above("memory", tmp_path / "proc", tmp_path / "cgroup")
    assert [memory_limit_bytes(group) for group in groups] == expected
