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
    int8 = 2

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
    @property
    def kernel_origins(self) -> dict[str, str]:
        """Which instruction set's kernels run, by kind of op."""

def cpu_features() -> list[tuple[str, bool]]:
    """(name, found) of what kernels for this kind of processor could use."""

def isas() -> list[tuple[str, str, bool]]:
    """(name, features it needs, available) of this build, in ascending order of preference."""

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
def quantize_weight(context: Context, source: Part, to: TensorType, out: Bytes) -> None: ...
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
def int8_peak(context: Context, seconds: float) -> float: ...
def stream(context: Context, bytes: int, passes: int) -> float: ...  # noqa: A002

# -- step --------------------------------------------------------------------------------------------------------
class Axis(Enum):
    tokens = 0
    logits = 1

@final
class Activation:
    """f32 [largest step of the axis, width]; borrows the array."""

    def __init__(self, axis: Axis, array: Float32) -> None: ...
    @property
    def axis(self) -> Axis: ...
    @property
    def array(self) -> Float32: ...

@final
class Op:
    """An operator bound to everything but the step; keeps alive what it points into."""

    @staticmethod
    def embed(table: PackedWeight, out: Activation) -> Op: ...
    @staticmethod
    def rms_norm(x: Activation, weight: Float32, eps: float, out: Activation) -> Op: ...
    @staticmethod
    def linear(x: Activation, w: PackedWeight, out: Activation, accumulate: bool) -> Op: ...
    @staticmethod
    def gated_linear(x: Activation, w: PackedWeight, activation: GateActivation, out: Activation) -> Op: ...
    @staticmethod
    def rope_and_store(qkv: Activation, rope: RopeTables, kv: KVPool, layer: int) -> Op: ...
    @staticmethod
    def attention(qkv: Activation, kv: KVPool, layer: int, scale: float, out: Activation) -> Op: ...
    @staticmethod
    def gather_logits_rows(x: Activation, out: Activation) -> Op: ...
    def run(self, context: Context, batch: Batch) -> None: ...

@final
class Program:
    """Ops that run in order, for any step, in one call."""

    def __init__(self, ops: tuple[Op, ...]) -> None: ...
    def run(self, context: Context, batch: Batch) -> None: ...
    def profile(self, context: Context, batch: Batch) -> list[tuple[float, float]]: ...
    def work(self, batch: Batch) -> list[tuple[str, float, float, float]]: ...

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
