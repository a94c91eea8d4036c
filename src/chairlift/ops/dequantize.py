"""What the bytes of a weight file mean, in numpy: the yardstick for every packed layout.

A value is computed as the formats define it, in f32. Products of an f16 scale and a small integer are exact in f32,
so only the addition of Q4_1 rounds, and a fused multiply-add gives the same bits.
"""

from __future__ import annotations

import numpy as np

from chairlift.ops.interface import Bytes, Float32, HostTensor, TensorType


def dequantize(tensor: HostTensor) -> Float32:
    """All values of a tensor as f32 `[rows, values per row]`; raises ValueError when bytes and shape disagree."""
    width = tensor.shape[-1]
    return dequantize_rows(tensor.data, tensor.type, width)


def dequantize_rows(data: Bytes, kind: TensorType, width: int) -> Float32:
    """uint8 `[rows, row_bytes]` to f32 `[rows, width]`; raises ValueError when a row is not `width` values long."""
    if data.ndim != 2 or width % kind.block_values or data.shape[1] != row_bytes(kind, width):
        raise ValueError(f"rows of {data.shape} bytes do not hold {width} values of {kind.value}")
    data = np.ascontiguousarray(data)
    if kind is TensorType.F32:
        return np.array(data.view(np.float32))
    if kind is TensorType.F16:
        return data.view(np.float16).astype(np.float32)
    if kind is TensorType.BF16:  # the upper half of an f32
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    blocks = data.reshape(len(data), -1, kind.block_bytes)  # [rows, blocks, bytes of a block]
    values: Float32 = _BLOCK_FORMATS[kind](blocks).reshape(len(data), width)
    return values


def row_bytes(kind: TensorType, width: int) -> int:
    """Bytes of a row of `width` values, a multiple of the format's block."""
    return width // kind.block_values * kind.block_bytes


def _scale(blocks: Bytes, offset: int) -> Float32:
    """The f16 at a byte offset of every block, as f32 [rows, blocks, 1]."""
    return np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Float32:
    """[rows, blocks, 16] bytes to [rows, blocks, 32] values 0..15: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.float32)


def _q4_0(blocks: Bytes) -> Float32:
    integers: Float32 = _nibbles(blocks[:, :, 2:]) - np.float32(8)
    return _scale(blocks, 0) * integers


def _q4_1(blocks: Bytes) -> Float32:
    values: Float32 = _scale(blocks, 0) * _nibbles(blocks[:, :, 4:]) + _scale(blocks, 2)
    return values


def _q8_0(blocks: Bytes) -> Float32:
    integers: Float32 = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).astype(np.float32)
    return _scale(blocks, 0) * integers


_BLOCK_FORMATS = {TensorType.Q4_0: _q4_0, TensorType.Q4_1: _q4_1, TensorType.Q8_0: _q8_0}
