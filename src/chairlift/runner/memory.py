"""How many KV blocks fit and how long a request may be: pure arithmetic, and one reader of the machine's facts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chairlift.config import MAX_KV_BLOCKS, CacheConfig
from chairlift.errors import ConfigError
from chairlift.runner.control_groups import PROC, ROOT, groups_above, memory_limit_bytes, read_number

MIB = 2**20
FREE_SHARE = 2  # the pool takes at most one part in two of the free memory

# By version of a control group: the file that says what is used, and the key of its part that can be given back.
_USAGE_FILES = {
    1: ("memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.current", "inactive_file"),
}


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The resolved pool, and what a person should hear about it."""

    num_kv_blocks: int
    max_model_len: int  # tokens
    notices: tuple[str, ...] = ()


def plan_kv_cache(
    cache: CacheConfig,
    *,
    bytes_per_block: int,
    model_context: int,
    max_model_len: int | None,
    max_num_seqs: int,
    available_bytes: int,
) -> KVPlan:
    """Size the KV pool and settle the context.

    The pool is `num_kv_blocks`, or what `kv_cache_memory` holds, or the smaller of max_num_seqs x max_model_len and
    half of `available_bytes`. `model_context` is the context the model was made for, in tokens.

    Raises:
        ConfigError: not one block fits, or an explicit `max_model_len` is more than the model or the pool holds.
    """
    if max_model_len is not None and max_model_len > model_context:
        raise ConfigError(
            f"--max-model-len is {max_model_len}, more than the {model_context} tokens the model was made for"
        )
    wanted = max_model_len or model_context
    most = max_num_seqs * -(-wanted // cache.block_size)  # blocks that could ever be in use
    blocks = _num_blocks(cache, bytes_per_block, most, available_bytes)
    notices = _size_notices(blocks * bytes_per_block, available_bytes)
    held = blocks * cache.block_size  # tokens
    if held >= wanted:
        return KVPlan(blocks, wanted, notices)
    pool = f"the KV pool holds {blocks} blocks of {cache.block_size} tokens, {held} in all"
    knobs = "--kv-cache-memory raises it"
    if max_model_len is not None:
        raise ConfigError(f"--max-model-len is {max_model_len}, but {pool}; {knobs}")
    clamped = f"max_model_len clamped from {model_context} to {held}: {pool}; {knobs}"
    return KVPlan(blocks, held, (*notices, clamped))


def available_memory_bytes(proc: Path = PROC, cgroups: Path = ROOT) -> int:
    """Bytes this process could take now: the kernel's estimate, or what its control groups leave if that is less.

    The file page cache counts as free, both in MemAvailable and in a control group (inactive_file).
    """
    free = _mem_available(proc / "meminfo")
    return max(0, min([free, *_cgroup_rooms(proc, cgroups)]))


def _num_blocks(cache: CacheConfig, bytes_per_block: int, most: int, available_bytes: int) -> int:
    if cache.num_kv_blocks is not None:
        return cache.num_kv_blocks
    if cache.kv_cache_memory is not None:
        blocks = cache.kv_cache_memory // bytes_per_block
        if blocks < 1:
            raise ConfigError(
                f"--kv-cache-memory is {cache.kv_cache_memory} bytes; one block of {cache.block_size} tokens "
                f"takes {bytes_per_block} bytes"
            )
        return min(blocks, MAX_KV_BLOCKS)
    blocks = min(most, available_bytes // FREE_SHARE // bytes_per_block)
    if blocks < 1:
        raise ConfigError(
            f"{available_bytes // MIB} MiB of memory are free and half of that is for the KV cache, but one block "
            f"of {cache.block_size} tokens takes {bytes_per_block} bytes; free some memory or set "
            "--kv-cache-memory"
        )
    return blocks


def _size_notices(pool_bytes: int, available_bytes: int) -> tuple[str, ...]:
    if pool_bytes <= available_bytes:
        return ()
    return (
        f"the KV pool may grow to {pool_bytes // MIB} MiB, but only {available_bytes // MIB} MiB of memory are free",
    )


def _mem_available(meminfo: Path) -> int:
    """MemAvailable, or the free pages where there is no /proc."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    name = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _cgroup_rooms(proc: Path, root: Path) -> Iterator[int]:
    """Bytes left in each control group above this process."""
    for group in groups_above("memory", proc, root):
        most = memory_limit_bytes(group)
        if most is None:
            continue
        usage, reclaimable = _USAGE_FILES[group.version]
        used = read_number(group.folder / usage) or 0
        yield most - used + min(used, _stat(group.folder / "memory.stat", reclaimable))


def _stat(path: Path, name: str) -> int:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return next((int(value) for key, value in pairs if key == name), 0)
    except (OSError, ValueError):
        return 0
