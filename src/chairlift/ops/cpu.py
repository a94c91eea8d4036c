"""The native backend: every op becomes a `chairlift.ops._native.Op`, which runs on a batch or is recorded.

No arithmetic happens here. Making an op compares shapes; running it takes the rows from the batch and the
activation's axis and compares the batch's limits (largest slot, block, position) before memory is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from chairlift.ops import _native
from chairlift.ops.dequantize import row_bytes
from chairlift.ops.interface import (
    Activation,
    Axis,
    Batch,
    Float32,
    GatedLinear,
    HostTensor,
    KVCache,
    KVCacheSpec,
    Linear,
    MachineLimits,
    Norm,
    OpSeconds,
    OpWork,
    Program,
    RaggedBatch,
    Rope,
    RopeSpec,
    SampleBatch,
    SampleResult,
    TensorType,
)

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector
_PROBE_SECONDS = 0.3  # per peak
_PROBE_BYTES = 256 << 20  # more than the caches hold
_PROBE_PASSES = 6


class _GatedWeight(NamedTuple):
    packed: _native.PackedWeight
    activation: _native.GateActivation


@dataclass(frozen=True, slots=True)
class _Recording:
    """Stands for a batch while a forward pass is recorded."""

    ops: list[_native.Op]


class CpuOps:
    """`Ops` on native kernels, for steps of at most `max_num_tokens` rows and `max_num_logits` rows of logits.

    `num_threads` counts the calling thread; `isa` is "auto" or the name of a kernel table. `compute_dtype` "int8"
    multiplies 4-bit and 8-bit weights with activations rounded to 8 bits.

    Raises:
        ValueError: a number is below 1, a name is unknown, or this processor lacks the instruction set.
    """

    name = "cpu"

    def __init__(
        self,
        num_threads: int,
        max_num_tokens: int,
        max_num_logits: int,
        isa: str = "auto",
        compute_dtype: str = "f32",
    ) -> None:
        if max_num_tokens < 1 or max_num_logits < 1:
            raise ValueError(
                f"an arena of {max_num_tokens} tokens and {max_num_logits} rows of logits is too small"
            )
        if compute_dtype not in _COMPUTE_DTYPES:
            raise ValueError(f"compute_dtype is {compute_dtype!r}; known: {', '.join(_COMPUTE_DTYPES)}")
        self._context = _native.Context(num_threads, isa)
        self._compute = _COMPUTE_DTYPES[compute_dtype]
        self._max_rows = {Axis.TOKENS: max_num_tokens, Axis.LOGITS: max_num_logits}

    def describe(self) -> dict[str, str]:
        """Facts for `chairlift env`."""
        isa = self._context.isa
        features = _native.cpu_features()
        kernels = {f"kernels: {kind}": origin for kind, origin in self._context.kernel_origins.items()}
        return {
            "backend": self.name,
            "cpu features": " ".join(name for name, found in features if found) or "none",
            "cpu features missing": " ".join(name for name, found in features if not found) or "none",
            "isa": isa,
            "wider isa": "; ".join(_wider_isas(isa)) or "none in this build",
            **kernels,
            "compute dtype": self._compute.name,
            "threads": str(self._context.num_threads),
        }

    def measure_limits(self) -> MachineLimits:
        """Probe this machine with the backend's threads and instructions; takes about a second."""
        return MachineLimits(
            flops=2 * _native.fma_peak(self._context, _PROBE_SECONDS),
            int8_ops=2 * _native.int8_peak(self._context, _PROBE_SECONDS),
            read_bytes=_native.stream(self._context, _PROBE_BYTES, _PROBE_PASSES),
        )

    # -- load ------------------------------------------------------------------------------------------------
    def quantize(self, tensor: HostTensor, kind: TensorType) -> HostTensor:
        """Round float weights to blocks of 8 or 4 bits; raises ValueError, see `ops.quantize`."""
        out = np.empty((len(tensor.data), row_bytes(kind, tensor.shape[-1])), np.uint8)
        _native.quantize_weight(self._context, _part(tensor), _TYPES[kind], out)
        return HostTensor(tensor.name, kind, tensor.shape, out)

    def load_linear(self, parts: Sequence[HostTensor]) -> Linear:
        """Pack `[out, in]` parts, stacked along `out`; raises ValueError when they don't fit together."""
        return Linear(_native.pack_linear(self._context, [_part(tensor) for tensor in parts], self._compute))

    def load_gated_linear(self, gate: HostTensor, up: HostTensor, activation: str) -> GatedLinear:
        """Pack gate and up, `[out, in]` each; raises ValueError for an unknown activation."""
        if activation not in _GATES:
            raise ValueError(f"activation is {activation!r}; known: {', '.join(_GATES)}")
        packed = _native.pack_gated_linear(self._context, _part(gate), _part(up), self._compute)
        return GatedLinear(_GatedWeight(packed, _GATES[activation]))

    def load_norm(self, weight: HostTensor) -> Norm:
        """Widen a norm's weight `[width]` to f32."""
        width = weight.shape[-1]
        table = _native.pack_linear(self._context, [_part(weight)])
        row = _aligned_zeros(1, width)
        _native.embed(self._context, np.zeros(1, np.int32), table, row)
        return Norm(row[0])

    def make_rope(self, spec: RopeSpec) -> Rope:
        """Build the cos and sin tables; raises ValueError for a spec out of range."""
        if spec.scaling not in _SCALINGS:
            raise ValueError(f"rope scaling is {spec.scaling!r}; known: {', '.join(_SCALINGS)}")
        tables = _native.RopeTables(
            self._context,
            head_dim=spec.head_dim,
            base=spec.base,
            max_positions=spec.max_positions,
            scaling=_SCALINGS[spec.scaling],
            factor=spec.factor,
            low_freq_factor=spec.low_freq_factor,
            high_freq_factor=spec.high_freq_factor,
            original_max_positions=spec.original_max_positions,
            freq_divisors=list(spec.freq_divisors),
        )
        return Rope(tables)

    def allocate_kv_cache(self, spec: KVCacheSpec) -> KVCache:
        """Map the pool; raises ValueError for a shape that the kernels don't take."""
        if spec.dtype not in _KV_DTYPES:
            raise ValueError(f"the KV cache's dtype is {spec.dtype!r}; known: {', '.join(_KV_DTYPES)}")
        pool = _native.KVPool(
            num_layers=spec.num_layers,
            num_blocks=spec.num_blocks,
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=_KV_DTYPES[spec.dtype],
        )
        return KVCache(pool)

    def allocate_activation(self, axis: Axis, width: int) -> Activation:
        """Reserve `width` f32 columns for the largest step of the axis."""
        array = _aligned_zeros(self._max_rows[axis], width)
        return Activation(_native.Activation(_AXES[axis], array))

    # -- step ------------------------------------------------------------------------------------------------
    def capture(self, forward: Callable[[Batch], Activation]) -> Program:
        """Record the ops of `forward`; it gets a batch without rows, and nothing is computed."""
        recording = _Recording([])
        result = forward(Batch(recording))
        return _Program(self, _native.Program(tuple(recording.ops)), result)

    def upload_batch(self, batch: RaggedBatch) -> Batch:
        """Check a batch (raises ValueError) and borrow its arrays, which must not change during the step."""
        return Batch(_native.Batch(batch, self._max_rows[Axis.TOKENS], self._max_rows[Axis.LOGITS]))

    def embed(self, batch: Batch, table: Linear, out: Activation) -> None:
        """out[t] = row input_ids[t] of the table; raises ValueError for an id outside it."""
        self._take(batch, _native.Op.embed(cast(_native.PackedWeight, table), _rows(out)))

    def rms_norm(self, batch: Batch, x: Activation, norm: Norm, eps: float, out: Activation) -> None:
        """out = x / sqrt(mean(x^2) + eps) * weight, per row."""
        self._take(batch, _native.Op.rms_norm(_rows(x), cast(Float32, norm), eps, _rows(out)))

    def linear(
        self, batch: Batch, x: Activation, w: Linear, out: Activation, *, accumulate: bool = False
    ) -> None:
        """out = x @ w.T, or out += x @ w.T."""
        weight = cast(_native.PackedWeight, w)
        self._take(batch, _native.Op.linear(_rows(x), weight, _rows(out), accumulate))

    def gated_linear(self, batch: Batch, x: Activation, w: GatedLinear, out: Activation) -> None:
        """out = activation(x @ gate.T) * (x @ up.T)."""
        weight = cast(_GatedWeight, w)
        self._take(batch, _native.Op.gated_linear(_rows(x), weight.packed, weight.activation, _rows(out)))

    def rope_and_store(self, batch: Batch, qkv: Activation, rope: Rope, kv: KVCache, layer: int) -> None:
        """Rotate q in place; rotate k, round k and v to the cache's dtype and store them at slot_mapping."""
        tables, pool = cast(_native.RopeTables, rope), cast(_native.KVPool, kv)
        self._take(batch, _native.Op.rope_and_store(_rows(qkv), tables, pool, layer))

    def attention(
        self, batch: Batch, qkv: Activation, kv: KVCache, layer: int, scale: float, out: Activation
    ) -> None:
        """Causal grouped-query attention over the paged cache."""
        pool = cast(_native.KVPool, kv)
        self._take(batch, _native.Op.attention(_rows(qkv), pool, layer, scale, _rows(out)))

    def gather_logits_rows(self, batch: Batch, x: Activation, out: Activation) -> None:
        """out[i] = x[logits_indices[i]]."""
        self._take(batch, _native.Op.gather_logits_rows(_rows(x), _rows(out)))

    def sample(self, batch: Batch, logits: Activation, request: SampleBatch) -> SampleResult:
        """Draw or score tokens; raises ValueError for ids, rows or parameters out of range."""
        result = SampleResult.blank(request)
        _native.sample(
            self._context,
            cast(_native.Batch, batch),
            _rows(logits).array,
            request,
            result.token_ids,
            result.logprobs,
            result.ranks,
            result.top_ids,
            result.top_logprobs,
        )
        return result

    def copy_blocks(self, kv: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) in every layer, in order; raises ValueError for a block outside the pool."""
        _native.copy_blocks(cast(_native.KVPool, kv), pairs)

    def to_numpy(self, batch: Batch, x: Activation) -> Float32:
        """A copy of an activation's live rows."""
        step, activation = cast(_native.Batch, batch), _rows(x)
        count = step.num_tokens if activation.axis is _native.Axis.tokens else step.num_logits
        live: Float32 = activation.array[:count].copy()
        return live

    def close(self) -> None:
        """Stop the worker threads; no op may follow. A second call does nothing."""
        vars(self).pop("_context", None)

    def _take(self, batch: Batch, op: _native.Op) -> None:
        """Add the op to the recording that stands for a batch, or run it on a real one."""
        if isinstance(batch, _Recording):
            batch.ops.append(op)
        else:
            op.run(self._context, cast(_native.Batch, batch))


class _Program:
    """A recorded forward pass; every op runs in one native call."""

    def __init__(self, ops: CpuOps, program: _native.Program, result: Activation) -> None:
        self._ops = ops
        self._program = program
        self._result = result

    def run(self, batch: Batch, times: list[OpSeconds] | None = None) -> Activation:
        """See `Program.run`."""
        context, step = self._ops._context, cast(_native.Batch, batch)
        if times is None:
            self._program.run(context, step)
        else:
            times += self._program.profile(context, step)
        return self._result

    def work(self, batch: Batch) -> list[OpWork]:
        """See `Program.work`."""
        return [OpWork(*each) for each in self._program.work(cast(_native.Batch, batch))]


def _rows(activation: Activation) -> _native.Activation:
    return cast(_native.Activation, activation)


def _wider_isas(isa: str) -> list[str]:
    """Those that would be preferred to `isa`, with what they need."""
    known = _native.isas()
    position = [name for name, _, _ in known].index(isa)
    return [f"{name} needs {features}" for name, features, _ in known[position + 1 :]]


def _part(tensor: HostTensor) -> tuple[_native.TensorType, int, np.ndarray]:
    return _TYPES[tensor.type], tensor.shape[-1], tensor.data


def _aligned_zeros(rows: int, width: int) -> Float32:
    """f32 `[rows, width]` that starts on a cache line."""
    count = rows * width
    memory = np.zeros(count * 4 + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count * 4].view(np.float32).reshape(rows, width)


_TYPES = {
    TensorType.F32: _native.TensorType.F32,
    TensorType.F16: _native.TensorType.F16,
    TensorType.BF16: _native.TensorType.BF16,
    TensorType.Q4_0: _native.TensorType.Q4_0,
    TensorType.Q4_1: _native.TensorType.Q4_1,
    TensorType.Q8_0: _native.TensorType.Q8_0,
}
_AXES = {Axis.TOKENS: _native.Axis.tokens, Axis.LOGITS: _native.Axis.logits}
_GATES = {"silu": _native.GateActivation.silu, "gelu_tanh": _native.GateActivation.gelu_tanh}
_SCALINGS = {
    "none": _native.RopeScaling.none,
    "linear": _native.RopeScaling.linear,
    "llama3": _native.RopeScaling.llama3,
}
_COMPUTE_DTYPES = {"f32": _native.ComputeDtype.f32, "int8": _native.ComputeDtype.int8}
_KV_DTYPES = {"f16": _native.KVDtype.f16, "f32": _native.KVDtype.f32, "int8": _native.KVDtype.int8}
