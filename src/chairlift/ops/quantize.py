"""Float weights to blocks of 32 with a scale, in numpy: the yardstick for the native quantiser, compared with `==`.

The same order of the same f32 operations: a sum of 32 values is 16 lanes and a tree (docs/architecture/numerics.md).

Q8_0: scale = largest |x| / 127 as f16, or the next f16 above where that is better.
Q4_1: scale and minimum of the smallest squared error found. Nine starts, the block's range with a little cut off at
either end; each is improved twice: the least-squares scale and minimum of its codes, then the codes nearest to those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chairlift.ops.dequantize import dequantize, row_bytes
from chairlift.ops.interface import Bytes, Float32, HostTensor, TensorType

LARGEST = np.float32(32768)  # of a weight; a minimum fitted to it still is a 16-bit float
CUTS = (np.float32(0), np.float32(0.03), np.float32(0.06))  # parts of a block's range cut off at an end
ROUNDS = 2
_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
_BLOCK = 32
_N = np.float32(_BLOCK)
_AT_ONCE = 2**15  # blocks: keeps temporary arrays small


def quantize(tensor: HostTensor, kind: TensorType) -> HostTensor:
    """A float tensor `[rows, in]` as Q8_0 or Q4_1 blocks along `in`.

    Raises:
        ValueError: another type, `in` no multiple of 32, or a value that is not finite or beyond 32768 in size.
    """
    width = tensor.shape[-1]
    if tensor.type not in _FLOATS or kind not in (TensorType.Q8_0, TensorType.Q4_1):
        raise ValueError("only F32, F16 and BF16 weights are quantised, and only to Q8_0 or Q4_1")
    if width % _BLOCK:
        raise ValueError(f"a row of {width} values is not a positive multiple of the block of {_BLOCK}")
    values = dequantize(tensor)
    good = (np.abs(values) <= LARGEST).all(axis=1)
    if not good.all():
        raise ValueError(f"row {np.argmin(good)} has a value that is not finite or beyond 32768 in size")
    x = values.reshape(-1, _BLOCK)  # [blocks, 32]
    fit = _q8_0 if kind is TensorType.Q8_0 else _q4_1
    blocks = np.concatenate([fit(x[i : i + _AT_ONCE]) for i in range(0, len(x), _AT_ONCE)])
    return HostTensor(tensor.name, kind, tensor.shape, blocks.reshape(len(values), row_bytes(kind, width)))


@dataclass(slots=True)
class _Fit:
    """Blocks as w = scale * code + min."""

    scale: Float32  # [blocks] f16 values
    low: Float32  # [blocks] the minimum, f16 values
    codes: Float32  # [blocks, 32]
    error: Float32  # [blocks] sum of squares

    def keep_better(self, other: _Fit) -> None:
        """Take over the blocks where `other` is closer."""
        better = other.error < self.error
        for name in ("scale", "low", "codes", "error"):
            getattr(self, name)[better] = getattr(other, name)[better]


def _q8_0(x: Float32) -> Bytes:
    scale = (np.abs(x).max(axis=1) / np.float32(127)).astype(np.float16)
    zero = np.zeros(len(x), np.float16)
    best = _fit_codes(x, scale, zero, -127, 127)
    best.keep_better(_fit_codes(x, (scale.view(np.uint16) + 1).view(np.float16), zero, -127, 127))
    return np.concatenate([_half_bytes(best.scale), best.codes.astype(np.int8).view(np.uint8)], axis=1)


def _q4_1(x: Float32) -> Bytes:
    low, high = (
        x.min(axis=1) + np.float32(0),
        x.max(axis=1) + np.float32(0),
    )  # of -0 and 0 either may be found
    width, sum_x = high - low, _sum(x)
    best = _Fit(low.copy(), low.copy(), np.zeros_like(x), np.full(len(x), np.inf, np.float32))
    for below in CUTS:
        for above in CUTS:
            scale = width * (np.float32(1) - below - above) / np.float32(15)
            fit = _fit_codes(x, scale.astype(np.float16), (low + below * width).astype(np.float16), 0, 15)
            best.keep_better(fit)
            for _ in range(ROUNDS):
                fit = _least_squares(x, sum_x, fit.codes)
                best.keep_better(fit)
    codes = best.codes.astype(np.uint8)
    nibbles = codes[:, :16] | codes[:, 16:] << 4
    return np.concatenate([_half_bytes(best.scale), _half_bytes(best.low), nibbles], axis=1)


def _fit_codes(x: Float32, scale: np.ndarray, low: np.ndarray, lowest: int, highest: int) -> _Fit:
    """The nearest codes for f16 scales and minima [blocks], and how far off they are."""
    step, start = scale.astype(np.float32), low.astype(np.float32)
    used = step > 0
    inverse = np.where(used, np.float32(1) / np.where(used, step, np.float32(1)), np.float32(0))
    scaled = (x - start[:, None]) * inverse[:, None]
    codes = np.rint(np.clip(scaled, np.float32(lowest), np.float32(highest)))
    off = x - (step[:, None] * codes + start[:, None])
    return _Fit(step, start, codes, _sum(off * off))


def _least_squares(x: Float32, sum_x: Float32, codes: Float32) -> _Fit:
    """The scale and minimum with the smallest squared error for given codes, and the codes nearest to those."""
    sum_q, sum_qq, sum_qx = _sum(codes), _sum(codes * codes), _sum(codes * x)
    determinant = _N * sum_qq - sum_q * sum_q
    solvable = determinant > 0
    slope = (_N * sum_qx - sum_q * sum_x) / np.where(solvable, determinant, np.float32(1))
    scale = np.where(solvable, slope, np.float32(0))
    low = (sum_x - scale * sum_q) / _N
    return _fit_codes(x, scale.astype(np.float16), low.astype(np.float16), 0, 15)


def _sum(values: Float32) -> Float32:
    """[blocks, 32] to [blocks]."""
    half = _BLOCK // 2
    while half:
        values = values[:, :half] + values[:, half : 2 * half]
        half //= 2
    total: Float32 = values[:, 0]
    return total


def _half_bytes(values: Float32) -> Bytes:
    """f16 values [blocks] as uint8 [blocks, 2]."""
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)
