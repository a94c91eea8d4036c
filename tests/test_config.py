"""Settings: every flag lands in its slice, and wrong values are refused with value, limit and knob."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.config import EngineConfig, size_in_bytes
from chairlift.errors import ConfigError


def test_flags_land_in_their_slices() -> None:
    """Flat keywords are routed to the slice that declares them; None keeps the default."""
    config = EngineConfig.from_flags(
        model="m.gguf", max_num_seqs=8, block_size=32, threads=1, seed=3, max_model_len=None
    )
    assert config.model.model == "m.gguf"
    assert config.scheduler.max_num_seqs == 8
    assert config.cache.block_size == 32
    assert config.compute.threads == 1
    assert config.seed == 3
    assert config.model.max_model_len is None


def test_unknown_flag_is_named() -> None:
    """A typo is an error that lists what is known, never a silently dropped keyword."""
    with pytest.raises(ConfigError, match=r"max_num_seq'.*max_num_seqs"):
        EngineConfig.from_flags(max_num_seq=8)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("block_size", 24, "--block-size is 24; it must be a multiple of 16"),
        ("block_size", 0, "--block-size is 0; it must be at least 16"),
        ("quantization", "q5", "--quantization is 'q5'; choose one of q8, q4"),
        ("kv_cache_dtype", "f64", "--kv-cache-dtype is 'f64'; choose one of f16, f32, int8"),
        ("max_num_seqs", 0, "--max-num-seqs is 0; it must be at least 1"),
        ("max_num_batched_tokens", -1, "--max-num-batched-tokens is -1"),
        ("threads", 0, "--threads is 0"),
        ("scheduling_policy", "lottery", "--scheduling-policy is 'lottery'"),
        ("backend", "cuda", "--backend is 'cuda'"),
        ("isa", "sse2", "--isa is 'sse2'"),
        ("kv_cache_memory", 0, "--kv-cache-memory is 0"),
        ("max_num_batched_tokens", 10**9, "--max-num-batched-tokens is 1000000000; it must be at most 65536"),
        ("max_num_seqs", 10**7, "--max-num-seqs is 10000000; it must be at most 65536"),
        ("threads", 99999, "--threads is 99999; it must be at most 1024"),
        ("num_kv_blocks", 2**31, "--num-kv-blocks is 2147483648; it must be at most 2147483647"),
        ("threads", "2", "--threads is '2'; it must be an integer or None"),
        ("model", 5, "--model is 5; it must be a text or None"),
        ("block_size", 48.0, "--block-size is 48.0; it must be an integer"),
        ("block_size", Path("48"), "--block-size is '48'; it must be an integer"),
        ("enable_prefix_caching", "no", "--enable-prefix-caching is 'no'; it must be True or False"),
        ("max_model_len", True, "--max-model-len is True; it must be an integer or None"),
        ("seed", "x", "--seed is 'x'; it must be an integer or None"),
        ("kv_cache_memory", "lots", "'lots' is not a size; write 512M"),
        ("kv_cache_dtype", ["f16"], r"--kv-cache-dtype is \['f16'\]; it must be a text"),
    ],
)
def test_wrong_values_name_the_flag(flag: str, value: object, message: str) -> None:
    """Each limit is checked, and the message says which flag to turn."""
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_flags(**{flag: value})


def test_paths_and_sizes_as_people_have_them() -> None:
    """A `pathlib` path is a path, and a size may be written with its unit."""
    config = EngineConfig.from_flags(model=Path("a") / "m.gguf", kv_cache_memory="2GiB")
    assert config.model.model == "a/m.gguf"
    assert config.cache.kv_cache_memory == 2 * 2**30


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("1k", 1024), ("1.5g", 1610612736), ("2GiB", 2**31), ("3 MB", 3 * 2**20)]
)
def test_sizes(text: str, size: int) -> None:
    """Sizes are read as people write them."""
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "lots", "1x", "1e9"])
def test_wrong_sizes_are_refused(text: str) -> None:
    """What is no size says how to write one."""
    with pytest.raises(ConfigError, match="write 512M"):
        size_in_bytes(text)
