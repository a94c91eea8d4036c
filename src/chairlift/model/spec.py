"""The sizes and constants of a model, frozen: the one description that GGUF metadata and config.json both become.

Standard library only, so that the front end can read a model's context length without importing numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chairlift.errors import ModelLoadError

MAX_SIZE = 2**31 - 1  # rows and columns are 32-bit in the kernels
MAX_POSITIONS = 2**24  # of a table of cosines; no model of today has a longer context


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotary embedding as the model's files describe it; the fields are those of `ops.interface.RopeSpec`.

    Raises:
        ModelLoadError: a number is not positive, or llama3's band of frequencies is empty.
    """

    base: float = 10000.0
    scaling: str = "none"  # none | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        _check_positive("rope base", self.base)
        _check_positive("rope factor", self.factor)
        if self.scaling == "llama3":
            _check_positive("rope original_max_positions", self.original_max_positions)
            _check_positive(
                "rope high_freq_factor - low_freq_factor", self.high_freq_factor - self.low_freq_factor
            )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and constants of a decoder.

    Raises:
        ModelLoadError: sizes are out of range or contradict each other; the message names the field.
    """

    architecture: str  # as the file names it: "llama" (GGUF), "LlamaForCausalLM" (Hugging Face)
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int  # tokens of context the model was made for
    rms_norm_eps: float
    rope: RopeParameters = field(default_factory=RopeParameters)
    tie_word_embeddings: bool | None = None  # None = the file does not say: tied if it holds no head
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # any of them ends a generation

    def __post_init__(self) -> None:
        for name in _SIZES:
            _check_size(name, getattr(self, name), MAX_SIZE)
        _check_size("max_positions", self.max_positions, MAX_POSITIONS)
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"num_heads is {self.num_heads}, not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ModelLoadError(f"head_dim is {self.head_dim}; rotary embedding needs an even one")
        _check_positive("rms_norm_eps", self.rms_norm_eps)
        for token_id in self.eos_token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise ModelLoadError(
                    f"eos_token_id {token_id} is outside the vocabulary [0, {self.vocab_size})"
                )

    @property
    def qkv_size(self) -> int:
        """Columns of the fused projection: q, then k, then v."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
)


def _check_size(name: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise ModelLoadError(f"{name} is {value}, outside [1, {limit}]")


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < 1e12:
        raise ModelLoadError(f"{name} is {value}; it must be positive and finite")
