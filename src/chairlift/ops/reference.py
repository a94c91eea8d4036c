"""The reference backend: numpy, slow, obviously right. It judges every kernel, and needs no compiler.

Weights are dequantised to f32 once, at load (8 times the file of a 4-bit model): a correctness tool, not a product.
Every row is computed on its own, in calls whose shapes depend on that row alone, so that a row's bits do not depend
on its neighbours here either; sums are carried in f64 wherever that is cheap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from chairlift.ops.batch_check import check_batch, check_range, check_sample_batch
from chairlift.ops.dequantize import dequantize, dequantize_rows
from chairlift.ops.integer_activations import INTEGER_TYPES, quantize_groups, round_to_int8, without_lowest
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
from chairlift.ops.quantize import quantize
from chairlift.ops.reference_sampling import sample_rows
from chairlift.ops.rope_tables import cos_sin_tables

Float64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class _Activation:
    axis: Axis
    rows: Float32  # [largest step of the axis, width]


@dataclass(slots=True)
class _Linear:
    """Parts stacked along `out`; those multiplied with rounded activations are marked."""

    parts: list[tuple[Float32, bool]]  # ([out, in], integer)

    def times(self, x: Float32) -> Float32:
        """x @ w.T: [rows, in] -> [rows, out]."""
        rounded = round_to_int8(x) if any(integer for _, integer in self.parts) else x
        return np.concatenate([_rows_times(rounded if i else x, w) for w, i in self.parts], axis=1)


@dataclass(slots=True)
class _GatedLinear:
    gate: _Linear
    up: _Linear
    function: Callable[[Float64], Float64]


@dataclass(slots=True)
class _Rope:
    cos: Float32  # [max_positions, head_dim / 2]
    sin: Float32


@dataclass(slots=True)
class _KVCache:
    spec: KVCacheSpec
    # [num_layers, num_blocks * block_size, num_kv_heads, head_dim]; int8 as the f32 that integers and scales mean
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]

    def store(self, layer: int, slots: npt.NDArray[np.int64], k: Float32, v: Float32) -> None:
        """k and v `[tokens, num_kv_heads, head_dim]`, rounded to the cache's dtype."""
        for pool, rows in ((self.keys, k), (self.values, v)):
            pool[layer, slots] = _round_heads(rows) if self.spec.dtype == "int8" else rows


@dataclass(frozen=True, slots=True)
class _Program:
    """There is nothing to gain by recording: every step calls `forward` again."""

    forward: Callable[[Batch], Activation]

    def run(self, batch: Batch, times: list[OpSeconds] | None = None) -> Activation:
        """Compute a step; `forward` counts as one op, whose work is not known."""
        started = time.perf_counter()
        result = self.forward(batch)
        if times is not None:
            spent = time.perf_counter() - started
            times.append((spent, spent))
        return result

    def work(self, batch: Batch) -> list[OpWork]:
        """One entry that counts nothing."""
        return [OpWork("forward", flops=0.0, int8_ops=0.0, num_bytes=0.0)]


class ReferenceOps:
    """`Ops` in numpy for steps of at most `max_num_tokens` rows and `max_num_logits` rows of logits."""

    name = "reference"

    def __init__(self, max_num_tokens: int, max_num_logits: int, compute_dtype: str = "f32") -> None:
        if compute_dtype not in ("f32", "int8"):
            raise ValueError(f"compute_dtype is {compute_dtype!r}; known: f32, int8")
        self._max_rows = {Axis.TOKENS: max_num_tokens, Axis.LOGITS: max_num_logits}
        self._compute_dtype = compute_dtype

    def describe(self) -> dict[str, str]:
        """Facts for `chairlift env`."""
        return {"backend": self.name, "numpy": np.__version__}

    def measure_limits(self) -> None:
        """Nothing to compare with: numpy decides what runs."""

    # -- load ------------------------------------------------------------------------------------------------
    def quantize(self, tensor: HostTensor, kind: TensorType) -> HostTensor:
        """Round float weights to blocks; see `ops.quantize` for errors."""
        return quantize(tensor, kind)

    def load_linear(self, parts: Sequence[HostTensor]) -> Linear:
        """Dequantise `[out, in]` parts and stack them along `out`."""
        return Linear(self._linear(parts))

    def load_gated_linear(self, gate: HostTensor, up: HostTensor, activation: str) -> GatedLinear:
        """Dequantise gate and up, `[out, in]` each; raises ValueError for an unknown activation."""
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; known: {', '.join(_ACTIVATIONS)}")
        return GatedLinear(_GatedLinear(self._linear([gate]), self._linear([up]), _ACTIVATIONS[activation]))

    def _linear(self, parts: Sequence[HostTensor]) -> _Linear:
        return _Linear([self._part(part) for part in parts])

    def _part(self, part: HostTensor) -> tuple[Float32, bool]:
        if self._compute_dtype != "int8" or part.type not in INTEGER_TYPES:
            return dequantize(part), False
        return dequantize_rows(without_lowest(part.data, part.type), part.type, part.shape[-1]), True

    def load_norm(self, weight: HostTensor) -> Norm:
        """Dequantise a norm's weight `[width]`."""
        return Norm(dequantize(weight)[0])

    def make_rope(self, spec: RopeSpec) -> Rope:
        """Build the cos and sin tables."""
        return Rope(_Rope(*cos_sin_tables(spec)))

    def allocate_kv_cache(self, spec: KVCacheSpec) -> KVCache:
        """Reserve the pool; np.zeros maps pages on first touch only."""
        shape = (spec.num_layers, spec.num_blocks * spec.block_size, spec.num_kv_heads, spec.head_dim)
        if spec.dtype not in ("f16", "f32", "int8"):
            raise ValueError(f"the KV cache's dtype is {spec.dtype!r}; known: f16, f32, int8")
        dtype = np.float16 if spec.dtype == "f16" else np.float32
        return KVCache(_KVCache(spec, np.zeros(shape, dtype), np.zeros(shape, dtype)))

    def allocate_activation(self, axis: Axis, width: int) -> Activation:
        """Reserve `width` f32 columns for the largest step of the axis."""
        return Activation(_Activation(axis, np.zeros((self._max_rows[axis], width), np.float32)))

    # -- step ------------------------------------------------------------------------------------------------
    def capture(self, forward: Callable[[Batch], Activation]) -> Program:
        """A program that calls `forward`."""
        return _Program(forward)

    def upload_batch(self, batch: RaggedBatch) -> Batch:
        """Check a batch (raises ValueError) and use it as it is."""
        check_batch(batch, self._max_rows[Axis.TOKENS], self._max_rows[Axis.LOGITS])
        return Batch(batch)

    def embed(self, batch: Batch, table: Linear, out: Activation) -> None:
        """out[t] = row input_ids[t] of the table; raises ValueError for an id outside it."""
        ids, weights = _ragged(batch).input_ids, cast(_Linear, table)
        check_range("input_ids", ids, 0, sum(len(part) for part, _ in weights.parts))
        first = 0
        for part, _ in weights.parts:
            inside = (ids >= first) & (ids < first + len(part))
            _live(batch, out)[inside] = part[ids[inside] - first]
            first += len(part)

    def rms_norm(self, batch: Batch, x: Activation, norm: Norm, eps: float, out: Activation) -> None:
        """out = x / sqrt(mean(x^2) + eps) * weight, per row."""
        rows = _live(batch, x).astype(np.float64)  # [rows, width]
        scale = 1.0 / np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + eps)
        _live(batch, out)[:] = rows * scale * cast(Float32, norm)

    def linear(
        self, batch: Batch, x: Activation, w: Linear, out: Activation, *, accumulate: bool = False
    ) -> None:
        """out = x @ w.T, or out += x @ w.T."""
        product = cast(_Linear, w).times(_live(batch, x))
        target = _live(batch, out)
        target[:] = target + product if accumulate else product

    def gated_linear(self, batch: Batch, x: Activation, w: GatedLinear, out: Activation) -> None:
        """out = activation(x @ gate.T) * (x @ up.T)."""
        weights, rows = cast(_GatedLinear, w), _live(batch, x)
        gate = weights.function(weights.gate.times(rows).astype(np.float64))
        _live(batch, out)[:] = gate * weights.up.times(rows)

    def rope_and_store(self, batch: Batch, qkv: Activation, rope: Rope, kv: KVCache, layer: int) -> None:
        """Rotate q in place; rotate k, round k and v to the cache's dtype and store them at slot_mapping."""
        ragged, cache, tables = _ragged(batch), cast(_KVCache, kv), cast(_Rope, rope)
        slots, positions = ragged.slot_mapping, ragged.positions
        check_range("slot_mapping", slots, 0, cache.keys.shape[1])
        check_range("positions", positions, 0, len(tables.cos))
        q, k, v = _split_heads(_live(batch, qkv), cache.spec)
        cos, sin = tables.cos[positions, None], tables.sin[positions, None]  # [tokens, 1, dim / 2]
        q[:] = _rotate(q, cos, sin)
        cache.store(layer, slots, _rotate(k, cos, sin), v)

    def attention(
        self, batch: Batch, qkv: Activation, kv: KVCache, layer: int, scale: float, out: Activation
    ) -> None:
        """Causal grouped-query attention, one row at a time, over what the cache holds."""
        ragged, cache = _ragged(batch), cast(_KVCache, kv)
        q, _, _ = _split_heads(_live(batch, qkv), cache.spec)  # [tokens, q heads, dim]
        result = _live(batch, out)
        for i in range(ragged.num_reqs):
            slots = _slots(ragged, i, cache.spec)
            keys, values = cache.keys[layer, slots], cache.values[layer, slots]  # [seq_len, kv heads, dim]
            for row in range(ragged.query_start_loc[i], ragged.query_start_loc[i + 1]):
                visible = int(ragged.positions[row]) + 1
                result[row] = _attend(q[row], keys[:visible], values[:visible], scale)

    def gather_logits_rows(self, batch: Batch, x: Activation, out: Activation) -> None:
        """out[i] = x[logits_indices[i]]."""
        _live(batch, out)[:] = _live(batch, x)[_ragged(batch).logits_indices]

    def sample(self, batch: Batch, logits: Activation, request: SampleBatch) -> SampleResult:
        """Draw or score tokens; raises ValueError for ids or rows out of range."""
        rows = _live(batch, logits)
        check_sample_batch(request, *rows.shape)
        return sample_rows(rows, request)

    def copy_blocks(self, kv: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) in every layer, in order."""
        cache = cast(_KVCache, kv)
        for pair in pairs:
            if min(pair) < 0 or max(pair) >= cache.spec.num_blocks:
                raise ValueError(f"block copy {pair} is outside the pool of {cache.spec.num_blocks} blocks")
            source, target = (slice(b * cache.spec.block_size, (b + 1) * cache.spec.block_size) for b in pair)
            for pool in (cache.keys, cache.values):
                pool[:, target] = pool[:, source]

    def to_numpy(self, batch: Batch, x: Activation) -> Float32:
        """A copy of an activation's live rows."""
        return np.array(_live(batch, x))

    def close(self) -> None:
        """Nothing to stop."""


def _ragged(batch: Batch) -> RaggedBatch:
    return cast(RaggedBatch, batch)


def _live(batch: Batch, x: Activation) -> Float32:
    """The rows of an activation that this step has; a view."""
    activation, ragged = cast(_Activation, x), _ragged(batch)
    count = ragged.num_tokens if activation.axis is Axis.TOKENS else len(ragged.logits_indices)
    rows: Float32 = activation.rows[:count]
    return rows


def _rows_times(x: Float32, w: Float32) -> Float32:
    """x @ w.T, one product of the same shape for each row: [rows, in], [out, in] -> [rows, out]."""
    out = np.empty((len(x), len(w)), np.float32)
    for row in range(len(x)):
        out[row] = w @ x[row]
    return out


def _split_heads(qkv: Float32, spec: KVCacheSpec) -> tuple[Float32, Float32, Float32]:
    """Views of q, k and v as [tokens, heads, head_dim]."""
    heads = qkv.reshape(len(qkv), -1, spec.head_dim)
    v = heads.shape[1] - spec.num_kv_heads
    k = v - spec.num_kv_heads
    return heads[:, :k], heads[:, k:v], heads[:, v:]


def _rotate(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """Rotate pairs (i, i + dim / 2): x [tokens, heads, dim], cos and sin [tokens, 1, dim / 2]."""
    low, high = np.split(x.astype(np.float64), 2, axis=2)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2).astype(np.float32)


def _round_heads(x: Float32) -> Float32:
    """Rounded to 8 bits with one scale for each head of each token: x [tokens, heads, dim]."""
    q, scale = quantize_groups(x)
    rounded: Float32 = q * scale[..., None]
    return rounded


def _slots(batch: RaggedBatch, i: int, spec: KVCacheSpec) -> npt.NDArray[np.int64]:
    """Where positions 0..seq_len - 1 of request i lie in the pool; raises ValueError for a block outside it."""
    positions = np.arange(batch.seq_lens[i], dtype=np.int64)
    if len(positions) > batch.block_tables.shape[1] * spec.block_size:
        raise ValueError(f"seq_lens[{i}] is {len(positions)}, more than its block table holds")
    blocks = batch.block_tables[i, positions // spec.block_size].astype(np.int64)
    check_range(f"block_tables[{i}]", blocks, 0, spec.num_blocks)
    slots: npt.NDArray[np.int64] = blocks * spec.block_size + positions % spec.block_size
    return slots


def _attend(q: Float32, keys: npt.NDArray[Any], values: npt.NDArray[Any], scale: float) -> Float64:
    """softmax(q k * scale) v of one row.

    q: [q heads, dim]   keys, values: [visible, kv heads, dim]   result: [q heads * dim]
    """
    kv_heads, dim = keys.shape[1:]
    grouped = q.reshape(kv_heads, -1, dim).astype(np.float64)  # adjacent q heads share a kv head
    k = keys.astype(np.float64).transpose(1, 2, 0)  # [kv heads, dim, visible]
    v = values.astype(np.float64).transpose(1, 0, 2)  # [kv heads, visible, dim]
    scores = np.matmul(grouped, k) * scale  # [kv heads, group, visible]
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    mixed: Float64 = np.matmul(weights / weights.sum(axis=2, keepdims=True), v)  # [kv heads, group, dim]
    return mixed.reshape(-1)


def _silu(x: Float64) -> Float64:
    with np.errstate(over="ignore"):  # exp(800) = inf gives the right limit, 0
        result: Float64 = x / (1.0 + np.exp(-x))
    return result


def _gelu_tanh(x: Float64) -> Float64:
    result: Float64 = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return result


_ACTIVATIONS: dict[str, Callable[[Float64], Float64]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}
