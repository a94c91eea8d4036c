"""Chairlift's native kernels (csrc/). Only chairlift/ops/cpu.py may import this module.

Arrays are C-contiguous, of exactly the dtype shown, and have room for at least the rows that an op works on. Every
function checks shapes and limits (ValueError) and releases the GIL while it computes.
"""

from collections.abc import Sequence
from enum import Enum
from typing import final

from chairlift.ops.interface import Bytes, Float32, Int32, RaggedBatch, SampleBatch

class TensorType(Enum):
    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q8_0 = 5

class GateActivation(Enum):
    silu = 0
    gelu_tanh = 1

class ComputeDtype(Enum):
    f32 = 0
    int8 = 1

class KVDtype(Enum):
    f16 = 0
    f32 = 1

class RopeScaling(Enum):
    none = 0
    linear = 1
    llama3 = 2

Part = tuple[TensorType, int, Bytes]  # type, values in a row, [out, row_bytes]

@final
class Context:
    """Thread pool and kernels of one engine; several may live in one process."""

    def __init__(self, num_threads: int, isa: str = "auto") -> None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def isa(self) -> str: ...

@final
class PackedWeight:
    """Weights [out, in] in a kernel layout."""

    @property
    def out(self) -> int: ...
    @property
    def in_(self) -> int: ...
    @property
    def gated(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...

@final
class KVPool:
    """The paged KV cache of all layers, backed lazily."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: KVDtype,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...

@final
class RopeTables:
    """cos and sin of every position and pair: f32 [max_positions, head_dim / 2], read-only."""

    def __init__(
        self,
        context: Context,
        head_dim: int,
        base: float,
        max_positions: int,
        scaling: RopeScaling,
        factor: float,
        low_freq_factor: float,
        high_freq_factor: float,
        original_max_positions: float,
        freq_divisors: Sequence[float],
    ) -> None: ...
    @property
    def cos(self) -> Float32: ...
    @property
    def sin(self) -> Float32: ...

@final
class Batch:
    """A RaggedBatch, checked; borrows its arrays."""

    def __init__(self, ragged: RaggedBatch, max_num_tokens: int, max_num_logits: int) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_logits(self) -> int: ...

# -- linear ------------------------------------------------------------------------------------------------------
def pack_linear(context: Context, parts: Sequence[Part], compute: ComputeDtype = ...) -> PackedWeight: ...
def pack_gated_linear(
    context: Context, gate: Part, up: Part, compute: ComputeDtype = ...
) -> PackedWeight: ...
def linear(
    context: Context, x: Float32, rows: int, w: PackedWeight, y: Float32, accumulate: bool = False
) -> None: ...
def gated_linear(
    context: Context, x: Float32, rows: int, w: PackedWeight, activation: GateActivation, y: Float32
) -> None: ...
def embed(context: Context, ids: Int32, w: PackedWeight, y: Float32) -> None: ...
def fma_peak(context: Context, seconds: float) -> float: ...
def stream(context: Context, bytes: int, passes: int) -> float: ...  # noqa: A002

# -- step --------------------------------------------------------------------------------------------------------
def embed_tokens(context: Context, batch: Batch, table: PackedWeight, out: Float32) -> None: ...
def rms_norm(context: Context, x: Float32, rows: int, weight: Float32, eps: float, y: Float32) -> None: ...
def gather_rows(context: Context, batch: Batch, x: Float32, out: Float32) -> None: ...
def rope_and_store(
    context: Context, batch: Batch, qkv: Float32, rope: RopeTables, kv: KVPool, layer: int
) -> None: ...
def attention(
    context: Context, batch: Batch, qkv: Float32, kv: KVPool, layer: int, scale: float, out: Float32
) -> None: ...
def copy_blocks(kv: KVPool, pairs: Sequence[tuple[int, int]]) -> None: ...
def sample(
    context: Context,
    batch: Batch,
    logits: Float32,
    request: SampleBatch,
    token_ids: Int32,
    logprobs: Float32,
    ranks: Int32,
    top_ids: Int32,
    top_logprobs: Float32,
) -> None: ...
