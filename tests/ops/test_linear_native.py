"""The native linear, gated linear and embed: right, and the same bits on every path (promise P2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chairlift.ops.dequantize import dequantize_rows, row_bytes
from chairlift.ops.interface import TensorType
from ops.backends import available_isas

native: Any = pytest.importorskip(
    "chairlift.ops._native", reason="the native module is not built (make native)"
)

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

TYPES = list(TensorType)
FLOAT_TYPES = [TensorType.F32, TensorType.F16, TensorType.BF16]
ROW_COUNTS = [*range(1, 20), 23, 24, 25, 28, 29, 31, 32, 33, 64, 70, 96, 97, 200]


ISAS = ["generic", *available_isas()]


@pytest.fixture(scope="module")
def contexts() -> list[Any]:
    """Every instruction set with one and two threads; the first is the one that others are compared with."""
    return [native.Context(threads, isa) for isa in ISAS for threads in (1, 2)]


def random_rows(rng: np.random.Generator, kind: TensorType, out: int, width: int) -> Bytes:
    """Bytes of `[out, width]` weights of a file format, every bit pattern of a quantum possible."""
    if kind in FLOAT_TYPES:
        values = rng.standard_normal((out, width)).astype(np.float32)
        if kind is TensorType.F16:
            return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8).reshape(out, -1)
        if kind is TensorType.BF16:
            values16 = (values.view(np.uint32) >> 16).astype(np.uint16)
            return np.ascontiguousarray(values16).view(np.uint8).reshape(out, -1)
        return values.view(np.uint8).reshape(out, -1)
    blocks = rng.integers(0, 256, (out, width // 32, kind.block_bytes), dtype=np.uint8)
    num_scales = 2 if kind is TensorType.Q4_1 else 1
    scales = (rng.standard_normal((out, width // 32, num_scales)) * 0.1).astype(np.float16)
    blocks[:, :, : 2 * num_scales] = scales.view(np.uint8)
    return blocks.reshape(out, -1)


def part(kind: TensorType, width: int, rows: Bytes) -> tuple[Any, int, Bytes]:
    return (getattr(native.TensorType, kind.name), width, rows)


def run_linear(context: Any, x: Float32, w: Any, y: Float32 | None = None) -> Float32:
    """x @ w.T in a fresh array, or y + x @ w.T."""
    result = np.full((len(x), w.out), np.nan, np.float32) if y is None else y.copy()
    native.linear(context, x, len(x), w, result, y is not None)
    return result


def run_gated(context: Any, x: Float32, w: Any, activation: str) -> Float32:
    y = np.full((len(x), w.out), np.nan, np.float32)
    native.gated_linear(context, x, len(x), w, getattr(native.GateActivation, activation), y)
    return y


def oracle(x: Float32, weights: Float32) -> npt.NDArray[np.float64]:
    product: npt.NDArray[np.float64] = x.astype(np.float64) @ weights.astype(np.float64).T
    return product


def assert_close(y: Float32, x: Float32, weights: Float32) -> None:
    """Within what one f32 chain over k may lose."""
    bound = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    assert np.all(np.abs(y - oracle(x, weights)) <= bound * x.shape[1] * 2.0**-24 + 1e-30)


def exact_chain(x: Float32, weights: Float32) -> Float32:
    """The contract itself: one fma per k, ascending, rounded once each (through exact integers)."""
    from fractions import Fraction

    y = np.empty((len(x), len(weights)), np.float32)
    for r, row in enumerate(x):
        for n, weight in enumerate(weights):
            total = np.float32(0)
            for a, b in zip(row, weight, strict=True):
                total = round_to_f32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(total)))
            y[r, n] = total
    return y


def round_to_f32(value: Any) -> np.float32:
    """Nearest f32 of an exact fraction, ties to even: two roundings through f64 differ only on a tie, checked."""
    candidate = np.float32(float(value))
    best = min(
        (
            candidate,
            np.nextafter(candidate, np.float32(np.inf)),
            np.nextafter(candidate, np.float32(-np.inf)),
        ),
        key=lambda c: (abs(type(value)(float(c)) - value), int(c.view(np.uint32)) & 1),
    )
    return np.float32(best)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_one_fma_chain_per_output(kind: TensorType, contexts: list[Any]) -> None:
    """Every kernel computes exactly the chain that the numerics page promises, checked in rational arithmetic."""
    rng = np.random.default_rng(1)
    rows = random_rows(rng, kind, 18, 64)
    x = rng.standard_normal((7, 64)).astype(np.float32)
    expected = exact_chain(x, dequantize_rows(rows, kind, 64))
    for context in contexts:
        w = native.pack_linear(context, [part(kind, 64, rows)])
        np.testing.assert_array_equal(run_linear(context, x, w), expected)
        np.testing.assert_array_equal(run_linear(context, x[:1], w), expected[:1])


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("out", "width"), [(1, 32), (17, 96), (64, 576), (100, 608), (128, 1536), (48, 1024), (336, 64)]
)
def test_same_bits_and_right(kind: TensorType, out: int, width: int, contexts: list[Any]) -> None:
    """Row count, row position, threads and instruction set don't change a bit, and the value is right."""
    rng = np.random.default_rng(out * width)
    rows = random_rows(rng, kind, out, width)
    weights = dequantize_rows(rows, kind, width)
    x = rng.standard_normal((max(ROW_COUNTS), width)).astype(np.float32)
    w = native.pack_linear(contexts[0], [part(kind, width, rows)])
    expected = run_linear(contexts[0], x, w)
    assert_close(expected, x, weights)
    for context in contexts[1:]:
        for count in ROW_COUNTS:
            np.testing.assert_array_equal(run_linear(context, x[:count], w), expected[:count])
        for first in (1, 5, 50):
            shifted = np.ascontiguousarray(x[first:])
            np.testing.assert_array_equal(run_linear(context, shifted, w), expected[first:])


@pytest.mark.parametrize(
    "kind", [TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0], ids=lambda kind: kind.name
)
def test_scales_of_every_class_of_number(kind: TensorType, contexts: list[Any]) -> None:
    """Zero, subnormal, infinite and NaN scales, of either sign, give the bits of the definition everywhere."""
    rng = np.random.default_rng(3)
    rows = random_rows(rng, kind, 32, 64)
    scales = np.array([0.0, -0.0, 2.0**-24, -(2.0**-24), 65504, np.inf, -np.inf, np.nan], np.float16)
    rows.reshape(32, 2, kind.block_bytes)[:, :, :2] = np.tile(scales, 8).reshape(32, 2, 1).view(np.uint8)
    x = rng.standard_normal((33, 64)).astype(np.float32)
    w = native.pack_linear(contexts[0], [part(kind, 64, rows)])
    expected = run_linear(contexts[0], x, w)
    for context in contexts[1:]:
        for count in (1, 4, 11, 33):
            np.testing.assert_array_equal(run_linear(context, x[:count], w), expected[:count])


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("width", [1, 3, 7, 33, 100, 193, 577])
def test_float_weights_take_any_width(kind: TensorType, width: int, contexts: list[Any]) -> None:
    """Unquantised weights need no multiple of anything."""
    rng = np.random.default_rng(width)
    rows = random_rows(rng, kind, 21, width)
    x = rng.standard_normal((67, width)).astype(np.float32)
    w = native.pack_linear(contexts[0], [part(kind, width, rows)])
    expected = run_linear(contexts[0], x, w)
    assert_close(expected, x, dequantize_rows(rows, kind, width))
    for context in contexts[1:]:
        for count in range(1, 68):
            np.testing.assert_array_equal(run_linear(context, x[:count], w), expected[:count])


def test_every_row_alone_equals_the_row_in_a_batch(contexts: list[Any]) -> None:
    """Each of 70 rows alone gives the bits it has among the others, 4-bit and 8-bit."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((70, 576)).astype(np.float32)
    for kind in (TensorType.Q4_1, TensorType.Q8_0):
        rows = random_rows(rng, kind, 80, 576)
        for context in contexts[2:] or contexts:
            w = native.pack_linear(context, [part(kind, 576, rows)])
            together = run_linear(context, x, w)
            alone = np.concatenate([run_linear(context, x[r : r + 1], w) for r in range(len(x))])
            np.testing.assert_array_equal(alone, together)


def test_every_batch_size_up_to_seventy(contexts: list[Any]) -> None:
    """Batches of 1 to 70 rows agree row by row, so that no tile shape is special."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((70, 224)).astype(np.float32)
    for kind in TYPES:
        w = native.pack_linear(contexts[0], [part(kind, 224, random_rows(rng, kind, 48, 224))])
        expected = run_linear(contexts[0], x, w)
        for count in range(1, 71):
            np.testing.assert_array_equal(run_linear(contexts[-1], x[:count], w), expected[:count])


def test_accumulate_adds_once_at_the_end(contexts: list[Any]) -> None:
    """y += x @ w.T is one f32 addition to the finished product, in every kernel."""
    rng = np.random.default_rng(6)
    rows = random_rows(rng, TensorType.Q4_1, 200, 576)
    x = rng.standard_normal((64, 576)).astype(np.float32)
    y = rng.standard_normal((64, 200)).astype(np.float32) * 100
    for context in contexts:
        w = native.pack_linear(context, [part(TensorType.Q4_1, 576, rows)])
        for count in (1, 2, 3, 5, 64):
            expected = y[:count] + run_linear(context, x[:count], w)
            np.testing.assert_array_equal(run_linear(context, x[:count], w, y[:count]), expected)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(
    "kinds",
    [
        (TensorType.Q4_1, TensorType.Q4_1),
        (TensorType.Q4_0, TensorType.Q4_1),
        (TensorType.F16, TensorType.Q8_0),
    ],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
@pytest.mark.parametrize("out", [5, 48, 200])
def test_gated_linear(
    activation: str, kinds: tuple[TensorType, TensorType], out: int, contexts: list[Any]
) -> None:
    """act(gate) * up against float64, and the same bits everywhere, also when the two types differ."""
    rng = np.random.default_rng(7)
    gate_rows, up_rows = (random_rows(rng, kind, out, 192) for kind in kinds)
    x = rng.standard_normal((100, 192)).astype(np.float32) * np.float32(0.1)
    parts = [part(kind, 192, rows) for kind, rows in zip(kinds, (gate_rows, up_rows), strict=True)]
    w = native.pack_gated_linear(contexts[0], *parts)
    expected = run_gated(contexts[0], x, w, activation)

    gate = oracle(x, dequantize_rows(gate_rows, kinds[0], 192))
    up = oracle(x, dequantize_rows(up_rows, kinds[1], 192))
    inner = gate if activation == "silu" else 2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(expected, gate / (1 + np.exp(-inner)) * up, rtol=1e-4, atol=1e-4)
    for context in contexts[1:]:
        for count in (1, 2, 3, 4, 5, 6, 7, 13, 64, 97, 100):
            np.testing.assert_array_equal(run_gated(context, x[:count], w, activation), expected[:count])


def test_gate_activation_at_the_extremes(contexts: list[Any]) -> None:
    """silu goes to 0 and to x at the far ends, keeps NaN, and agrees bit for bit over the whole range of floats."""
    special = [
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        88.0,
        89.5,
        -87.0,
        -88.9,
        -103.0,
        -104.5,
        1e30,
        -1e30,
        np.inf,
        np.nan,
    ]
    rng = np.random.default_rng(8)
    gate = np.concatenate([special, rng.uniform(-120, 120, 5000), rng.standard_normal(5000)]).astype(
        np.float32
    )
    identity = np.ones((1, 1), np.float32)
    gate_part = part(TensorType.F32, 1, identity.view(np.uint8).reshape(1, 4))
    results = []
    for context in contexts:
        w = native.pack_gated_linear(context, gate_part, gate_part)
        results.append([run_gated(context, gate[:, None], w, a) for a in ("silu", "gelu_tanh")])
    silu = results[0][0][:, 0]
    wide = gate[: len(special)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (wide / (1 + np.exp(-wide)) * wide).astype(np.float32)
    np.testing.assert_allclose(silu[: len(special)], expected, rtol=1e-5, atol=1e-30)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_packing_loses_nothing(kind: TensorType, contexts: list[Any]) -> None:
    """Every row of a packed table comes back as the file's values exactly."""
    rng = np.random.default_rng(9)
    rows = random_rows(rng, kind, 75, 160)
    expected = dequantize_rows(rows, kind, 160)
    ids = rng.permutation(75).astype(np.int32)
    for context in contexts:
        w = native.pack_linear(context, [part(kind, 160, rows)])
        y = np.full((75, 160), np.nan, np.float32)
        native.embed(context, ids, w, y)
        np.testing.assert_array_equal(y, expected[ids])


@pytest.mark.parametrize("scale", [0x0000, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0xFBFF, 0x7000, 0x6FFF, 0x7001])
def test_extreme_scales_lose_nothing(scale: int, contexts: list[Any]) -> None:
    """Subnormal scales, and those of Q4_0 whose -8 d is too large for an f16."""
    rng = np.random.default_rng(10)
    for kind in (TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0):
        rows = random_rows(rng, kind, 16, 32)
        rows[:, :2] = np.array([scale], np.uint16).view(np.uint8)
        expected = dequantize_rows(rows, kind, 32)
        w = native.pack_linear(contexts[0], [part(kind, 32, rows)])
        y = np.empty((16, 32), np.float32)
        native.embed(contexts[0], np.arange(16, dtype=np.int32), w, y)
        np.testing.assert_array_equal(y, expected)
        x = np.eye(32, dtype=np.float32)
        for context in contexts:
            np.testing.assert_array_equal(run_linear(context, x, w), expected.T)
            np.testing.assert_array_equal(run_linear(context, x[3:4], w), expected.T[3:4])


def test_stacked_parts_of_any_types(contexts: list[Any]) -> None:
    """q, k and v in one product: types may differ, and out need not be a multiple of the panel."""
    rng = np.random.default_rng(11)
    kinds_and_outs = [(TensorType.Q4_1, 48), (TensorType.Q4_0, 16), (TensorType.Q4_1, 21), (TensorType.Q4_1, 5),
                      (TensorType.Q8_0, 40), (TensorType.F16, 3)]  # fmt: skip
    rows = [random_rows(rng, kind, out, 96) for kind, out in kinds_and_outs]
    weights = np.concatenate(
        [dequantize_rows(r, k, 96) for r, (k, _) in zip(rows, kinds_and_outs, strict=True)]
    )
    x = rng.standard_normal((9, 96)).astype(np.float32)
    parts = [part(kind, 96, r) for r, (kind, _) in zip(rows, kinds_and_outs, strict=True)]
    for context in contexts:
        w = native.pack_linear(context, parts)
        assert (w.out, w.in_) == (133, 96)
        table = np.empty((133, 96), np.float32)
        native.embed(context, np.arange(133, dtype=np.int32), w, table)
        np.testing.assert_array_equal(table, weights)
        expected = run_linear(contexts[0], x, w)
        assert_close(expected, x, weights)
        np.testing.assert_array_equal(run_linear(context, x, w), expected)


def test_rows_of_a_file_may_be_strided(contexts: list[Any]) -> None:
    """A view with a stride between rows (a slice of a bigger tensor) packs like its copy."""
    rng = np.random.default_rng(12)
    rows = random_rows(rng, TensorType.Q4_1, 40, 64)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    strided = native.pack_linear(contexts[0], [part(TensorType.Q4_1, 64, rows[::2])])
    copied = native.pack_linear(contexts[0], [part(TensorType.Q4_1, 64, rows[::2].copy())])
    np.testing.assert_array_equal(run_linear(contexts[0], x, strided), run_linear(contexts[0], x, copied))


def test_packed_size_stays_near_the_file() -> None:
    """A packed 4-bit or 8-bit weight takes no more bytes than the file's blocks plus padding."""
    rng = np.random.default_rng(13)
    context = native.Context(1)
    for kind in (TensorType.Q4_1, TensorType.Q8_0):
        rows = random_rows(rng, kind, 64, 576)
        assert native.pack_linear(context, [part(kind, 576, rows)]).nbytes <= 1.01 * 64 * row_bytes(kind, 576)


def test_rows_beyond_the_count_stay_untouched(contexts: list[Any]) -> None:
    """The arena is larger than a step: only the step's rows are written."""
    rng = np.random.default_rng(14)
    w = native.pack_linear(
        contexts[0], [part(TensorType.Q8_0, 32, random_rows(rng, TensorType.Q8_0, 20, 32))]
    )
    x = rng.standard_normal((10, 32)).astype(np.float32)
    for context in contexts:
        y = np.full((10, 20), 7.0, np.float32)
        native.linear(context, x, 4, w, y, False)
        assert np.all(y[4:] == 7.0)
        assert not np.any(y[:4] == 7.0)
        native.linear(context, x, 0, w, y, False)


def test_mistakes_are_errors_not_crashes() -> None:
    """Wrong shapes, types, ids and settings raise; nothing is silently converted."""
    rng = np.random.default_rng(15)
    context = native.Context(1)
    rows = random_rows(rng, TensorType.Q4_1, 16, 64)
    w = native.pack_linear(context, [part(TensorType.Q4_1, 64, rows)])
    gated = native.pack_gated_linear(context, *[part(TensorType.Q4_1, 64, rows)] * 2)
    x, y = np.zeros((2, 64), np.float32), np.zeros((2, 16), np.float32)
    narrow_x, narrow_y = np.zeros((2, 32), np.float32), np.zeros((2, 8), np.float32)
    for bad_x, count, bad_y in [(narrow_x, 2, y), (x, 3, y), (x, -1, y), (x, 2, y[:1]), (x, 2, narrow_y)]:
        with pytest.raises(ValueError, match=r"columns|rows"):
            native.linear(context, bad_x, count, w, bad_y, False)
    for bad_x, bad_y in [(x.astype(np.float64), y), (x, y.astype(np.float64)), (x[:, ::2], y), (x, y.T)]:
        with pytest.raises(TypeError):
            native.linear(context, bad_x, 2, w, bad_y, False)
    with pytest.raises(ValueError, match="pack_linear"):
        native.linear(context, x, 2, gated, y, False)
    with pytest.raises(ValueError, match="pack_gated_linear"):
        native.gated_linear(context, x, 2, w, native.GateActivation.silu, y)
    for bad_id in (-1, 16):
        with pytest.raises(IndexError, match=str(bad_id)):
            native.embed(context, np.array([0, bad_id], np.int32), w, x)
    with pytest.raises(ValueError, match="bytes"):
        native.pack_linear(context, [part(TensorType.Q4_1, 96, rows)])
    with pytest.raises(ValueError, match="block"):
        native.pack_linear(context, [part(TensorType.Q4_1, 65, rows)])
    with pytest.raises(ValueError, match="part"):
        native.pack_linear(context, [])
    other = part(TensorType.F32, 8, random_rows(rng, TensorType.F32, 4, 8))
    with pytest.raises(ValueError, match="different inputs"):
        native.pack_linear(context, [part(TensorType.Q4_1, 64, rows), other])
    with pytest.raises(ValueError, match="isa"):
        native.Context(1, "sse9")
    for threads in (0, -1, 100000):
        with pytest.raises(ValueError, match="num_threads"):
            native.Context(threads, "generic")


def test_more_threads_than_panels() -> None:
    """With many threads a small product is cut by rows too, and keeps its bits."""
    rng = np.random.default_rng(17)
    x = rng.standard_normal((200, 96)).astype(np.float32)
    rows = random_rows(rng, TensorType.Q4_1, 40, 96)
    one, many = native.Context(1), native.Context(9)
    w = native.pack_linear(one, [part(TensorType.Q4_1, 96, rows)])
    gated = native.pack_gated_linear(one, *[part(TensorType.Q4_1, 96, rows)] * 2)
    for count in (1, 7, 24, 100, 195, 200):
        np.testing.assert_array_equal(run_linear(many, x[:count], w), run_linear(one, x[:count], w))
        np.testing.assert_array_equal(
            run_gated(many, x[:count], gated, "silu"), run_gated(one, x[:count], gated, "silu")
        )


def test_large_results_keep_their_bits() -> None:
    """Results that are written past the caches equal the same rows in small results."""
    rng = np.random.default_rng(18)
    x = rng.standard_normal((130, 32)).astype(np.float32)
    rows = random_rows(rng, TensorType.Q8_0, 8208, 32)
    for context in (native.Context(1), native.Context(2)):
        w = native.pack_linear(context, [part(TensorType.Q8_0, 32, rows)])
        large = run_linear(context, x, w)
        assert large.nbytes > 4 << 20
        small = np.concatenate([run_linear(context, x[r : r + 10], w) for r in range(0, 130, 10)])
        np.testing.assert_array_equal(large, small)


def test_contexts_live_side_by_side() -> None:
    """Two engines in one process, each with its own threads, called from two Python threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(16)
    rows = random_rows(rng, TensorType.Q4_1, 256, 256)
    x = rng.standard_normal((8, 256)).astype(np.float32)
    contexts = [native.Context(2), native.Context(3)]
    w = native.pack_linear(contexts[0], [part(TensorType.Q4_1, 256, rows)])
    expected = run_linear(contexts[0], x, w)

    def repeat(context: Any) -> bool:
        return all(np.array_equal(run_linear(context, x, w), expected) for _ in range(200))

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(repeat, contexts * 2))
