"""How the KV pool and the context are settled, from numbers and from files that look like a machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chairlift.config import CacheConfig
from chairlift.errors import ConfigError
from chairlift.runner.memory import KVPlan, available_memory_bytes, plan_kv_cache

KIB = 1024


def plan(cache: CacheConfig | None = None, **facts: Any) -> KVPlan:
    """A plan for 64 requests of up to 1024 tokens, 1 KiB a block, 1 GiB free, unless said otherwise."""
    numbers: dict[str, Any] = {
        "bytes_per_block": KIB,
        "model_context": 1024,
        "max_model_len": None,
        "max_num_seqs": 64,
        "available_bytes": 2**30,
        **facts,
    }
    return plan_kv_cache(cache or CacheConfig(), **numbers)


def test_with_plenty_of_memory_the_pool_holds_all_requests_at_full_length() -> None:
    """No more blocks than max_num_seqs full contexts; nothing to say."""
    assert plan() == KVPlan(64 * 64, 1024)
    assert plan(max_model_len=100) == KVPlan(64 * 7, 100)


def test_with_little_memory_the_pool_takes_half_of_it() -> None:
    """Half of what is free bounds the pool, and the context is untouched while one request fits."""
    assert plan(available_bytes=200 * KIB) == KVPlan(100, 1024)


def test_the_context_is_clamped_to_the_pool_and_said_so() -> None:
    """The default context shrinks to what the pool holds, with the numbers and the knob in the notice."""
    clamped = plan(available_bytes=40 * KIB)
    assert (clamped.num_kv_blocks, clamped.max_model_len) == (20, 320)
    (notice,) = clamped.notices
    for word in ("1024", "320", "20 blocks", "--kv-cache-memory"):
        assert word in notice


def test_an_exact_number_of_blocks_wins_over_bytes() -> None:
    """num_kv_blocks is taken as it is, then kv_cache_memory, rounded down to whole blocks."""
    cache = CacheConfig(num_kv_blocks=7, kv_cache_memory=10**9)
    assert plan(cache, max_model_len=112) == KVPlan(7, 112)
    assert plan(CacheConfig(kv_cache_memory=100 * KIB + 1023)).num_kv_blocks == 100


@pytest.mark.parametrize(
    ("cache", "facts", "words"),
    [
        (CacheConfig(), {"max_model_len": 1025}, ("1025", "1024", "--max-model-len")),
        (CacheConfig(num_kv_blocks=7), {"max_model_len": 113}, ("113", "112", "--kv-cache-memory")),
        (CacheConfig(kv_cache_memory=1000), {}, ("1000", "1024", "--kv-cache-memory")),
        (CacheConfig(), {"available_bytes": 2047}, ("1024", "--kv-cache-memory")),
        (CacheConfig(), {"available_bytes": 40 * KIB, "max_model_len": 321}, ("321", "320")),
    ],
)
def test_what_cannot_fit_is_an_error_with_the_numbers(
    cache: CacheConfig, facts: dict[str, Any], words: tuple[str, ...]
) -> None:
    """Not one block, or an explicit context beyond the model or the pool: ConfigError at start."""
    with pytest.raises(ConfigError) as error:
        plan(cache, **facts)
    for word in words:
        assert word in str(error.value)


def test_a_pool_larger_than_free_memory_is_told() -> None:
    """An explicit size is obeyed, with a notice that the memory is not there now."""
    notices = plan(CacheConfig(kv_cache_memory=300 * 2**20), available_bytes=100 * 2**20).notices
    assert "300 MiB" in notices[0]
    assert "100 MiB" in notices[0]


# -- the machine's facts -------------------------------------------------------------------------------------------
def machine(folder: Path, files: dict[str, str]) -> int:
    """What is available on a machine whose control files have these texts."""
    for name, text in {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_memory_bytes(folder / "proc", folder / "cgroup")


def test_without_limits_the_kernels_estimate_counts(tmp_path: Path) -> None:
    """MemAvailable, in bytes, with no control group or one that says max."""
    assert machine(tmp_path, {}) == 8000 * KIB
    files = {"proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "max\n", "cgroup/a/memory.current": "5\n"}
    assert machine(tmp_path, files) == 8000 * KIB


def test_a_version_2_limit_anywhere_above_counts(tmp_path: Path) -> None:
    """The smallest room in the group and its parents; cached file pages are room."""
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "cgroup/a/b/memory.max": str(4000 * KIB),
        "cgroup/a/b/memory.current": str(1000 * KIB),
        "cgroup/a/memory.max": str(3000 * KIB),
        "cgroup/a/memory.current": str(2000 * KIB),
        "cgroup/a/memory.stat": f"anon 5\ninactive_file {500 * KIB}\n",
    }
    assert machine(tmp_path, files) == 1500 * KIB


def test_in_a_container_the_root_of_the_mount_counts(tmp_path: Path) -> None:
    """The path in /proc may not exist below the container's mount; the mount's own files are read then."""
    files = {
        "proc/self/cgroup": "0::/docker/abc\n",
        "cgroup/memory.max": str(2000 * KIB),
        "cgroup/memory.current": "0",
    }
    assert machine(tmp_path, files) == 2000 * KIB


def test_a_version_1_limit_counts(tmp_path: Path) -> None:
    """The memory controller of version 1, whose "no limit" is a huge number."""
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n",
        "cgroup/memory/x/memory.limit_in_bytes": str(5000 * KIB),
        "cgroup/memory/x/memory.usage_in_bytes": str(2000 * KIB),
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert machine(tmp_path, files) == 3000 * KIB


def test_this_machine_has_memory() -> None:
    """The reader works on the real files."""
    assert available_memory_bytes() > 2**20
