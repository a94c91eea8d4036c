"""8-bit activations (`--compute-dtype int8`) in numpy: the yardstick for the native kernels.

A row is rounded in groups of 32, the groups of the weights it meets: scale = largest |x| / 127, q = x * (127 / largest)
to the nearest integer, ties to even. Native kernels sum q times a weight's integer exactly and scale each group's sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chairlift.ops.interface import Bytes, Float32, TensorType

GROUP = 32
SMALLEST = np.float32(2.0**-100)  # a group below it becomes 0: 127 / largest must stay finite
# Weights that meet rounded rows.
INTEGER_TYPES = frozenset({TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0})


def quantize_int8(x: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """f32 `[rows, in]` to q int8 `[rows, in / 32, 32]` and scale f32 `[rows, in / 32]`.

    A group with a value that is not finite gets scale NaN and q 0.
    """
    return quantize_groups(x.reshape(len(x), -1, GROUP))


def quantize_groups(groups: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """f32 `[..., n]` to q int8 `[..., n]` and a scale f32 `[...]` for each n values, as quantize_int8 does."""
    finite = np.isfinite(groups).all(axis=-1)
    largest = np.where(finite, np.abs(groups).max(axis=-1), np.float32(0)).astype(np.float32)
    used = largest >= SMALLEST
    inverse = np.float32(127) / np.where(used, largest, np.float32(1))
    scaled = np.where(used[..., None], groups, np.float32(0)) * inverse[..., None]
    scale = np.where(used, largest / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    return np.rint(scaled).astype(np.int8), scale.astype(np.float32)


def round_to_int8(x: Float32) -> Float32:
    """f32 `[rows, in]` as its 8-bit form means it: scale * q."""
    q, scale = quantize_int8(x)
    rounded: Float32 = (q * scale[..., None]).astype(np.float32).reshape(x.shape)
    return rounded


def without_lowest(rows: Bytes, kind: TensorType) -> Bytes:
    """A file's weights `[rows, row_bytes]` as they meet rounded rows: -128 of Q8_0, which no quantiser writes, is -127.

    Other formats have no such value and come back as they are.
    """
    if kind is not TensorType.Q8_0:
        return rows
    blocks = rows.reshape(len(rows), -1, kind.block_bytes).copy()  # [rows, blocks, f16 scale and 32 int8]
    quanta = blocks[:, :, 2:]
    quanta[quanta == 0x80] = 0x81
    clipped: Bytes = blocks.reshape(rows.shape)
    return clipped
