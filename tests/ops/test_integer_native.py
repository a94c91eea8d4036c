"""Products with 8-bit activations: the contract exactly, and the same bits on every path (promise P2)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chairlift.ops.dequantize import dequantize_rows
from chairlift.ops.integer_activations import INTEGER_TYPES, quantize_int8, round_to_int8, without_lowest
from chairlift.ops.interface import Axis, HostTensor, TensorType
from chairlift.ops.reference import ReferenceOps
from ops.op_table import load_rows, token_batch
from ops.test_linear_native import contexts, part, random_rows, round_to_f32, run_gated, run_linear

native: Any = pytest.importorskip(
    "chairlift.ops._native", reason="the native module is not built (make native)"
)
__all__ = ["contexts"]  # a fixture

Float32 = npt.NDArray[np.float32]
KINDS = sorted(INTEGER_TYPES, key=lambda kind: kind.name)
ROW_COUNTS = [*range(1, 34), 47, 48, 49, 64, 70, 97, 200]
by_name = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def pack(context: Any, kind: TensorType, rows: npt.NDArray[np.uint8], width: int) -> Any:
    return native.pack_linear(context, [part(kind, width, rows)], native.ComputeDtype.int8)


def meant(kind: TensorType, rows: npt.NDArray[np.uint8], width: int) -> Float32:
    """The weights `[out, width]` that rounded rows meet."""
    return dequantize_rows(without_lowest(rows, kind) if kind in INTEGER_TYPES else rows, kind, width)


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return round_to_f32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def integers(kind: TensorType, rows: npt.NDArray[np.uint8]) -> tuple[Any, Float32, Float32]:
    """Integers [out, groups, 32], scales and minimums [out, groups] as the contract sees a file's weights."""
    blocks = rows.reshape(len(rows), -1, kind.block_bytes)
    scale = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[..., 0].astype(np.float32)
    if kind is TensorType.Q8_0:
        q = np.maximum(np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8), -127).astype(np.int64)
        return q, scale, np.zeros_like(scale)
    packed = blocks[:, :, 2 if kind is TensorType.Q4_0 else 4 :]
    q = np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.int64)
    if kind is TensorType.Q4_0:
        return q, scale, np.float32(-8) * scale
    return q, scale, np.ascontiguousarray(blocks[:, :, 2:4]).view(np.float16)[..., 0].astype(np.float32)


def contract(kind: TensorType, rows: npt.NDArray[np.uint8], x: Float32) -> Float32:
    """What csrc/arch/kernel_table.h says, in exact fractions."""
    w, w_scale, w_min = integers(kind, rows)
    q, x_scale = quantize_int8(x)
    y = np.zeros((len(x), len(rows)), np.float32)
    for r in range(len(x)):
        for n in range(len(rows)):
            total = np.float32(0)
            for g in range(w.shape[1]):
                dot = np.float32(int(q[r, g].astype(np.int64) @ w[n, g]))
                total = fma(dot, w_scale[n, g] * x_scale[r, g], total)
                if kind is not TensorType.Q8_0:
                    scaled_sum = x_scale[r, g] * np.float32(int(q[r, g].sum(dtype=np.int64)))
                    total = fma(w_min[n, g], scaled_sum, total)
            y[r, n] = total
    return y


@by_name
def test_the_contract_exactly(kind: TensorType, contexts: list[Any]) -> None:
    """Integer sums, scales and minimums come together with the roundings that the header promises, no others."""
    rng = np.random.default_rng(1)
    rows = random_rows(rng, kind, 20, 96)
    x = (rng.standard_normal((5, 96)) * np.array([1, 1e-3, 100, 1e10, 1e-20])[:, None]).astype(np.float32)
    expected = contract(kind, rows, x)
    for context in contexts:
        np.testing.assert_array_equal(run_linear(context, x, pack(context, kind, rows, 96)), expected)


@by_name
@pytest.mark.parametrize("width", [32, 64, 576, 1536])
@pytest.mark.parametrize("out", [1, 16, 40, 200])
def test_same_bits_on_every_path(kind: TensorType, width: int, out: int, contexts: list[Any]) -> None:
    """Any number of rows, instruction set and number of threads give one result."""
    rng = np.random.default_rng(width + out)
    rows = random_rows(rng, kind, out, width)
    x = rng.standard_normal((200, width)).astype(np.float32)
    w = pack(contexts[0], kind, rows, width)
    expected = run_linear(contexts[0], x, w)
    for context in contexts[1:]:
        for count in ROW_COUNTS:
            np.testing.assert_array_equal(run_linear(context, x[:count], w), expected[:count])
    for r in range(0, 200, 37):
        np.testing.assert_array_equal(run_linear(contexts[-1], x[r : r + 1], w), expected[r : r + 1])


@by_name
def test_the_largest_sums(kind: TensorType, contexts: list[Any]) -> None:
    """Activations and weights at their limits overflow no narrow integer, -128 in a file included."""
    rng = np.random.default_rng(3)
    rows = random_rows(rng, kind, 48, 64)
    blocks = rows.reshape(48, 2, kind.block_bytes)
    first = kind.block_bytes - (32 if kind is TensorType.Q8_0 else 16)
    blocks[:16, :, first:] = 0xFF  # 15 and 15, or -1
    blocks[16:32, :, first:] = 0x7F if kind is TensorType.Q8_0 else 0x0F
    blocks[32:, :, first:] = 0x80  # -128, or 8 and 0
    x = np.where(rng.random((40, 64)) < 0.5, -1, 1).astype(np.float32)
    x[0], x[1] = 1, -1
    expected = contract(kind, rows, x)
    for context in contexts:
        for count in (1, 3, 40):
            y = run_linear(context, x[:count], pack(context, kind, rows, 64))
            np.testing.assert_array_equal(y, expected[:count])


@by_name
def test_special_activations(kind: TensorType, contexts: list[Any]) -> None:
    """Zeros, tiny and huge values round as the yardstick does; what is not finite stays visible as NaN."""
    rng = np.random.default_rng(4)
    rows = random_rows(rng, kind, 33, 96)
    x = rng.standard_normal((40, 96)).astype(np.float32)
    x[0] = 0
    x[1] *= np.float32(1e-31)
    x[2] *= np.float32(2.0**-101)
    x[3] *= np.float32(1e33)
    x[4, 5] = np.inf
    x[5, 70] = np.nan
    x[6] = np.float32(1e-45)
    x[7, :32] = 2.0**-100
    x[8, :32] = np.linspace(-127, 127, 32) + 0.5  # halfway cases
    expected = run_linear(contexts[0], x, pack(contexts[0], kind, rows, 96))
    assert np.isnan(expected[4]).all()
    assert np.isnan(expected[5]).all()
    assert not expected[0].any()
    assert not expected[6].any()
    plain = [r for r in range(len(x)) if r not in (4, 5)]
    weights = meant(kind, rows, 96).astype(np.float64)
    exact = round_to_int8(x[plain]).astype(np.float64) @ weights.T
    bound = np.abs(round_to_int8(x[plain])).astype(np.float64) @ np.abs(weights).T
    assert np.all(np.abs(expected[plain] - exact) <= bound * 1e-5 + 1e-35)
    for context in contexts[1:]:
        w = pack(context, kind, rows, 96)
        np.testing.assert_array_equal(run_linear(context, x, w), expected)
        for r in range(9):
            np.testing.assert_array_equal(run_linear(context, x[r : r + 1], w), expected[r : r + 1])


@pytest.mark.parametrize("kinds", [(TensorType.Q4_1, TensorType.Q4_1), (TensorType.Q8_0, TensorType.F16)])
def test_gated_linear_too(kinds: tuple[TensorType, TensorType], contexts: list[Any]) -> None:
    """Gate and up may be integers both, or one of them; the activation is the same."""
    rng = np.random.default_rng(7)
    rows = [random_rows(rng, kind, 72, 192) for kind in kinds]
    x = rng.standard_normal((100, 192)).astype(np.float32) * np.float32(0.1)
    parts = [part(kind, 192, r) for kind, r in zip(kinds, rows, strict=True)]
    w = native.pack_gated_linear(contexts[0], *parts, native.ComputeDtype.int8)
    expected = run_gated(contexts[0], x, w, "silu")
    rounded = [round_to_int8(x) if kind in INTEGER_TYPES else x for kind in kinds]
    gate, up = (
        a.astype(np.float64) @ meant(k, r, 192).astype(np.float64).T
        for a, r, k in zip(rounded, rows, kinds, strict=True)
    )
    np.testing.assert_allclose(expected, gate / (1 + np.exp(-gate)) * up, rtol=2e-2, atol=2e-2)
    for context in contexts[1:]:
        for count in (1, 2, 5, 13, 64, 97, 100):
            np.testing.assert_array_equal(run_gated(context, x[:count], w, "silu"), expected[:count])


def test_float_weights_are_left_alone(contexts: list[Any]) -> None:
    """Weights without groups are multiplied in f32 whatever the compute dtype, and so is a part of a stack."""
    rng = np.random.default_rng(8)
    kinds = (TensorType.F16, TensorType.Q4_1, TensorType.F32)
    rows = [random_rows(rng, kind, 32, 64) for kind in kinds]
    parts = [part(kind, 64, r) for kind, r in zip(kinds, rows, strict=True)]
    x = rng.standard_normal((9, 64)).astype(np.float32)
    for context in contexts:
        mixed = run_linear(context, x, native.pack_linear(context, parts, native.ComputeDtype.int8))
        plain = run_linear(context, x, native.pack_linear(context, parts))
        np.testing.assert_array_equal(mixed[:, :32], plain[:, :32])
        np.testing.assert_array_equal(mixed[:, 64:], plain[:, 64:])
        assert np.any(mixed[:, 32:64] != plain[:, 32:64])


@by_name
def test_a_table_reads_back(kind: TensorType, contexts: list[Any]) -> None:
    """The embedding of a model with 8-bit activations has the file's values, -128 read as -127 as in products."""
    rng = np.random.default_rng(9)
    rows = random_rows(rng, kind, 75, 160)
    table = np.empty((75, 160), np.float32)
    for context in contexts:
        native.embed(context, np.arange(75, dtype=np.int32), pack(context, kind, rows, 160), table)
        np.testing.assert_array_equal(table, meant(kind, rows, 160))


@by_name
def test_the_reference_follows_the_contract(kind: TensorType) -> None:
    """The numpy backend multiplies the contract's integers, -128 in a file included."""
    rng = np.random.default_rng(10)
    rows = random_rows(rng, kind, 20, 96)
    rows.reshape(20, 3, kind.block_bytes)[:, :, -8:] = 0x80
    x = rng.standard_normal((5, 96)).astype(np.float32)
    ops = ReferenceOps(5, 5, "int8")
    batch, out = ops.upload_batch(token_batch(5)), ops.allocate_activation(Axis.TOKENS, 20)
    ops.linear(batch, load_rows(ops, batch, x), ops.load_linear([HostTensor("w", kind, (20, 96), rows)]), out)
    np.testing.assert_allclose(ops.to_numpy(batch, out), contract(kind, rows, x), rtol=1e-4, atol=1e-4)
