"""Settings: every flag lands in its slice, and wrong values are refused with value, limit and knob."""

from __future__ import annotations

import pytest

from chairlift.config import EngineConfig
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
        ("kv_cache_dtype", "f64", "--kv-cache-dtype is 'f64'; choose one of f16, f32"),
        ("max_num_seqs", 0, "--max-num-seqs is 0; it must be at least 1"),
        ("max_num_batched_tokens", -1, "--max-num-batched-tokens is -1"),
        ("threads", 0, "--threads is 0"),
        ("scheduling_policy", "lottery", "--scheduling-policy is 'lottery'"),
        ("backend", "cuda", "--backend is 'cuda'"),
        ("isa", "sse2", "--isa is 'sse2'"),
        ("kv_cache_memory", 0, "--kv-cache-memory is 0"),
    ],
)
def test_wrong_values_name_the_flag(flag: str, value: object, message: str) -> None:
    """Each limit is checked, and the message says which flag to turn."""
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_flags(**{flag: value})
