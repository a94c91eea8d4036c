"""The quantiser: native and numpy write the same bytes, and the blocks are as good as they should be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from chairlift.ops.dequantize import dequantize
from chairlift.ops.interface import HostTensor, Ops, TensorType
from chairlift.ops.quantize import quantize
from ops.backends import BACKENDS

Q8, Q4 = TensorType.Q8_0, TensorType.Q4_1
TARGETS = pytest.mark.parametrize("kind", [Q8, Q4], ids=["q8", "q4"])
RNG = np.random.default_rng(5)
SHAPE = (9, 96)

VALUES = {
    "normal": RNG.standard_normal(SHAPE) * 0.02,
    "heavy tails": RNG.standard_t(3, SHAPE),
    "every magnitude": RNG.standard_normal(SHAPE) * 10.0 ** RNG.uniform(-9, 3, SHAPE),
    "scales below the smallest normal f16": RNG.standard_normal(SHAPE) * 1e-6,
    "f32 subnormals": RNG.standard_normal(SHAPE) * 1e-40,
    "zeros of both signs": np.where(RNG.random(SHAPE) < 0.5, -0.0, 0.0),
    "constant": np.full(SHAPE, 0.3),
    "two values": np.where(RNG.random(SHAPE) < 0.5, -0.3, 0.4),
    "the largest": np.where(RNG.random(SHAPE) < 0.5, -32768.0, 32768.0),
    "far from zero": 1000.0 + RNG.random(SHAPE),
}


@pytest.fixture(params=[name for name in BACKENDS if name != "reference"])
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    backend = BACKENDS[request.param](1, 1)
    yield backend
    backend.close()


def tensor(values: np.ndarray, kind: TensorType = TensorType.F32) -> HostTensor:
    """Values `[rows, in]` as a tensor of floats; BF16 by cutting off the lower half."""
    rows = values.astype("<f2" if kind is TensorType.F16 else "<f4")
    if kind is TensorType.BF16:
        rows = np.ascontiguousarray(rows.view("<u2")[:, 1::2])
    return HostTensor("w", kind, values.shape, rows.view(np.uint8).reshape(len(values), -1))


def squared_error(original: HostTensor, rounded: HostTensor) -> float:
    return float(((dequantize(original).astype(float) - dequantize(rounded)) ** 2).sum())


def relative_error(original: HostTensor, rounded: HostTensor) -> float:
    return (squared_error(original, rounded) / float((dequantize(original).astype(float) ** 2).sum())) ** 0.5


@TARGETS
@pytest.mark.parametrize(
    "source", [TensorType.F32, TensorType.F16, TensorType.BF16], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("name", VALUES)
def test_native_equals_numpy(ops: Ops, name: str, source: TensorType, kind: TensorType) -> None:
    """Every kind of block, from every float type, is the same bytes in both."""
    original = tensor(VALUES[name], source)
    ours, theirs = ops.quantize(original, kind), quantize(original, kind)
    assert (ours.name, ours.type, ours.shape) == (theirs.name, theirs.type, theirs.shape)
    assert np.array_equal(ours.data, theirs.data)


def test_threads_share_out_rows_only() -> None:
    """A tensor of many rows is the same bytes on two threads as row by row."""
    original = tensor(np.random.default_rng(1).standard_normal((700, 64)))
    whole = quantize(original, Q4)
    for make in (make for name, make in BACKENDS.items() if name != "reference"):
        backend = make(1, 1)
        assert np.array_equal(backend.quantize(original, Q4).data, whole.data)
        backend.close()


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (Q8, "faef499b1c1915a0"),
        (Q4, "fbc2ba8e6688bbfc"),
    ],
    ids=["q8", "q4"],
)
def test_the_bytes_are_pinned(kind: TensorType, digest: str) -> None:
    """What a version writes is what every other version and machine writes: logits must not move under a user."""
    steps = np.arange(64 * 128, dtype=np.int64)
    values = ((steps * 7919) % 10007 - 5003).astype(np.float32) / np.float32(2**17)
    data = quantize(tensor(values.reshape(64, 128)), kind).data
    assert hashlib.sha256(data.tobytes()).hexdigest()[:16] == digest


def test_values_on_a_grid_come_back() -> None:
    """What was 4-bit or 8-bit before, widened to f32, is quantised without any loss."""
    rng = np.random.default_rng(2)
    quanta = rng.integers(0, 16, (20, 4, 32))
    quanta[:, :, :2] = 0, 15  # the whole range is in use
    scale = rng.uniform(0.001, 0.03, (20, 4, 1)).astype(np.float16).astype(np.float32)
    low = rng.uniform(-0.3, 0.0, (20, 4, 1)).astype(np.float16).astype(np.float32)
    four = tensor((scale * quanta.astype(np.float32) + low).reshape(20, 128))
    assert squared_error(four, quantize(four, Q4)) == 0.0
    eight = rng.integers(-127, 128, (20, 4, 32)).astype(np.float32)
    eight[:, :, 0] = 127
    grid = tensor((scale * eight).reshape(20, 128))
    assert squared_error(grid, quantize(grid, Q8)) == 0.0


def plain_q4(original: HostTensor) -> HostTensor:
    """Q4_1 as the smallest and largest value of a block give it, without a search."""
    x = dequantize(original).reshape(-1, 32)
    low = x.min(axis=1, keepdims=True).astype(np.float16)
    scale = ((x.max(axis=1, keepdims=True) - low) / 15).astype(np.float16)
    step = np.where(scale > 0, scale.astype(np.float32), 1)
    codes = np.clip(np.rint((x - low.astype(np.float32)) / step), 0, 15).astype(np.uint8)
    blocks = [scale.view(np.uint8), low.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4]
    rows = np.concatenate(blocks, axis=1).reshape(len(original.data), -1)
    return HostTensor("w", Q4, original.shape, rows)


@pytest.mark.parametrize(("name", "gain"), [("normal", 0.9), ("heavy tails", 0.93), ("far from zero", 1.0)])
def test_the_search_beats_the_plain_range(name: str, gain: float) -> None:
    """The error of 4-bit blocks is at least a tenth below that of minimum and maximum on normal weights."""
    original = tensor(VALUES[name])
    assert relative_error(original, quantize(original, Q4)) <= gain * relative_error(
        original, plain_q4(original)
    )


@pytest.mark.parametrize(("kind", "limit"), [(Q8, 0.006), (Q4, 0.075)], ids=["q8", "q4"])
def test_error_of_normal_weights(kind: TensorType, limit: float) -> None:
    """Relative RMS error of normally distributed weights: half a percent at 8 bits, seven at 4."""
    original = tensor(np.random.default_rng(4).standard_normal((64, 512)))
    assert relative_error(original, quantize(original, kind)) < limit


@TARGETS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 32768.5, -1e30])
def test_values_that_no_block_holds(ops: Ops, value: float, kind: TensorType) -> None:
    """A weight that is not finite, or huge, is refused with its row by both."""
    values = np.zeros((5, 64))
    values[3, 40] = value
    for run in (quantize, ops.quantize):
        with pytest.raises(ValueError, match=r"row 3 has a value that is not finite or beyond 32768"):
            run(tensor(values), kind)


@pytest.mark.parametrize(
    ("source", "kind", "width", "message"),
    [
        (TensorType.F32, Q4, 48, "a row of 48 values is not a positive multiple of the block of 32"),
        (TensorType.F32, TensorType.F16, 64, "only to Q8_0 or Q4_1"),
        (TensorType.F32, TensorType.Q4_0, 64, "only to Q8_0 or Q4_1"),
        (Q8, Q4, 64, "only F32, F16 and BF16 weights are quantised"),
    ],
)
def test_what_is_refused(ops: Ops, source: TensorType, kind: TensorType, width: int, message: str) -> None:
    """Rows of no whole blocks, targets without a quantiser and sources that are quantised already."""
    floats = tensor(np.zeros((2, width)))
    original = floats if source is TensorType.F32 else quantize(floats, source)
    for run in (quantize, ops.quantize):
        with pytest.raises(ValueError, match=message):
            run(original, kind)
