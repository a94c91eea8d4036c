"""Settings, frozen and sliced per layer. Flags of `chairlift serve` and keywords of `LLM` have these names.

`EngineConfig` is what a user asks for; what only the machine and the model can tell (how many KV blocks fit,
the largest context) is resolved once by `factory` and reported in `chairlift.engine.types.EngineInfo`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from chairlift.errors import ConfigError

KV_CACHE_DTYPES = ("f16", "f32")
DEFAULT_INDEX_URL = "https://pypi.org/simple"  # of Python packages: a wheel carries the default model
BACKENDS = ("auto", "cpu", "reference")
POLICIES = ("fcfs",)
ISAS = ("auto", "generic", "avx2", "avx512")
KV_TILE = 16  # kernels walk the cache in tiles of 16 tokens, so a block is a multiple of it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model and tokenizer, and how much context."""

    model: str | None = None  # path of a .gguf file or a Hugging Face folder; None = the default model
    tokenizer: str | None = None  # path of a tokenizer.json, a folder or a .gguf; None = the model's own
    chat_template: str | None = None  # path of a Jinja file, or the template itself; None = the model's own
    download_dir: str | None = None  # where the default model is kept; None = ~/.cache/chairlift
    max_model_len: int | None = None  # tokens; None = the model's context, clamped to the KV pool

    def __post_init__(self) -> None:
        _at_least("max_model_len", self.max_model_len, 1)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16  # tokens
    kv_cache_dtype: str = "f16"
    kv_cache_memory: int | None = None  # bytes; None = sized from free memory
    num_kv_blocks: int | None = None  # exact number of blocks; overrides kv_cache_memory (tests, experiments)
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, KV_TILE)
        if self.block_size % KV_TILE:
            raise ConfigError(f"--block-size is {self.block_size}; it must be a multiple of {KV_TILE}")
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _at_least("kv_cache_memory", self.kv_cache_memory, 1)
        _at_least("num_kv_blocks", self.num_kv_blocks, 1)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How many requests and tokens a step may hold, and who goes first."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256  # the token budget of a step
    max_num_waiting: int = 1024  # requests beyond it are refused with 429
    scheduling_policy: str = "fcfs"

    def __post_init__(self) -> None:
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("max_num_waiting", self.max_num_waiting, 1)
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    """Where and with what the arithmetic runs."""

    backend: str = "auto"  # auto = cpu when the native module is there, else reference
    threads: int | None = None  # None = the cores this process may use
    isa: str = "auto"  # auto = the widest that this machine has

    def __post_init__(self) -> None:
        _one_of("backend", self.backend, BACKENDS)
        _one_of("isa", self.isa, ISAS)
        _at_least("threads", self.threads, 1)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine needs, in slices; each class below receives only its own."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: int | None = None  # makes the seeds drawn for unseeded requests reproducible

    @classmethod
    def from_flags(cls, **flags: Any) -> EngineConfig:
        """Build from flat keywords (`max_num_seqs=8, block_size=16, ...`); None means the default.

        Raises:
            ConfigError: a keyword is unknown or a value is out of range.
        """
        slices: dict[str, dict[str, Any]] = {"model": {}, "cache": {}, "scheduler": {}, "compute": {}}
        where = {f.name: name for name, kind in _SLICES.items() for f in fields(kind)}
        seed = flags.pop("seed", None)
        for key, value in flags.items():
            if key not in where:
                raise ConfigError(f"unknown setting {key!r}; known: {', '.join(sorted(where))}, seed")
            if value is not None:
                slices[where[key]][key] = value
        return cls(**{name: kind(**slices[name]) for name, kind in _SLICES.items()}, seed=seed)


_SLICES: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "compute": ComputeConfig,
}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise ConfigError(f"{_flag(name)} is {value}; it must be at least {low}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{_flag(name)} is {value!r}; choose one of {', '.join(allowed)}")
