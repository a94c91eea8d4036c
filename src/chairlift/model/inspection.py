"""What a model file is, tensor by tensor, and what quantising it at load would cost each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chairlift.model.weights.mapped import TensorInfo
from chairlift.model.weights.quantized import Quantize, QuantizedWeights
from chairlift.model.weights.source import WeightSource
from chairlift.ops.dequantize import dequantize_rows
from chairlift.ops.interface import HostTensor

_VALUES_AT_ONCE = 2**22  # widened for comparison: some 50 MB, whatever the tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """A tensor after quantising: its blocks, and how far they are from the file's values."""

    type_name: str
    num_values: int
    num_bytes: int
    squares: float  # sum of w^2
    squared_error: float  # sum of (w - quantised w)^2
    largest_error: float  # largest |w - quantised w|

    @property
    def bits_per_weight(self) -> float:
        """Scales and minimums counted."""
        return 8 * self.num_bytes / self.num_values

    @property
    def relative_rms_error(self) -> float:
        """Root mean square of the error, over that of the weights; 0 for a tensor of zeros."""
        return math.sqrt(self.squared_error / self.squares) if self.squares else 0.0

    @classmethod
    def total(cls, losses: Sequence[Loss]) -> Loss:
        """All of them as if they were one tensor."""
        return cls(
            type_name="+".join(sorted({loss.type_name for loss in losses})),
            num_values=sum(loss.num_values for loss in losses),
            num_bytes=sum(loss.num_bytes for loss in losses),
            squares=math.fsum(loss.squares for loss in losses),
            squared_error=math.fsum(loss.squared_error for loss in losses),
            largest_error=max(loss.largest_error for loss in losses),
        )


def inspect_tensors(
    source: WeightSource, quantization: str | None = None, quantize: Quantize | None = None
) -> Iterator[tuple[TensorInfo, Loss | None]]:
    """Every tensor as the file describes it; with a `quantization`, and what does it, also what it loses.

    A tensor that would stay as it is has no loss. Raises ModelLoadError for values that cannot be quantised.
    """
    quantized = QuantizedWeights(source, quantization, quantize) if quantization and quantize else None
    for name in list(source.names()):
        info = source.info(name)
        yield info, None if quantized is None else _loss(source, quantized, name, info)


def _loss(source: WeightSource, quantized: QuantizedWeights, name: str, info: TensorInfo) -> Loss | None:
    if quantized.target(name) is None:
        return None
    return compare(source.get(name, info.shape), quantized.get(name, info.shape))


def compare(original: HostTensor, rounded: HostTensor) -> Loss:
    """How far the values of two tensors `[rows, in]` are from each other, in f64, some rows at a time."""
    width = original.shape[-1]
    step = max(1, _VALUES_AT_ONCE // width)
    squares = squared_error = largest = 0.0
    for first in range(0, len(original.data), step):
        rows = slice(first, first + step)
        exact = dequantize_rows(original.data[rows], original.type, width).astype(np.float64)
        off = exact - dequantize_rows(rounded.data[rows], rounded.type, width)
        squares += float(np.vdot(exact, exact))
        squared_error += float(np.vdot(off, off))
        largest = max(largest, float(np.abs(off).max(initial=0.0)))
    return Loss(
        type_name=rounded.type.name,
        num_values=math.prod(original.shape),
        num_bytes=rounded.data.nbytes,
        squares=squares,
        squared_error=squared_error,
        largest_error=largest,
    )
