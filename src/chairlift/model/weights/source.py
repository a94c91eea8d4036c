"""Where a model takes its tensors from, whatever the file format: by one set of names, with shapes checked."""

from __future__ import annotations

import math
import mmap
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import numpy as np

from chairlift.errors import ModelLoadError
from chairlift.model.weights.mapped import TensorInfo, map_file
from chairlift.ops.interface import HostTensor, TensorType


class WeightSource(Protocol):
    """The tensors of one model under their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`, ...).

    What a file format does to names or to the order of rows is undone here, so models never know about it.
    """

    path: Path

    def names(self) -> Collection[str]:
        """All tensors there are. One that has no Hugging Face name keeps the file's own."""
        ...

    def info(self, name: str) -> TensorInfo:
        """What the file says of one of `names()`: its own name, type, shape and place."""
        ...

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        """The tensor `name`; raises ModelLoadError when it is missing or has another shape."""
        ...


def view_tensor(data: mmap.mmap, info: TensorInfo) -> HostTensor:
    """A tensor as a read-only view `[rows, row_bytes]` of its mapped file; the parser has checked the range.

    Pages of tensors taken before are let go of (they come back if read again): they have most likely been packed,
    and would double the memory that loading takes.
    """
    data.madvise(mmap.MADV_DONTNEED)
    flat = np.frombuffer(data, dtype=np.uint8, count=info.num_bytes, offset=info.start)
    rows = flat.reshape(math.prod(info.shape[:-1]), -1)
    return HostTensor(info.name, TensorType(info.type_name), info.shape, rows)


def reopen(path: Path, expected_size: int) -> mmap.mmap:
    """Map a file whose header was read before; raises ModelLoadError if it has another size now."""
    data = map_file(path)
    if len(data) != expected_size:
        raise ModelLoadError(
            f"{path}: had {expected_size} bytes when its header was read, has {len(data)} now"
        )
    return data


def float_values(path: Path, tensor: HostTensor) -> tuple[float, ...]:
    """The values of a small F32 tensor, all finite and positive; raises ModelLoadError when they are not."""
    if tensor.type is not TensorType.F32:
        raise ModelLoadError(f"{path}: tensor {tensor.name!r} has type {tensor.type.name}, expected F32")
    values = tuple(np.frombuffer(tensor.data.tobytes(), dtype="<f4").tolist())
    if not all(0.0 < value < math.inf for value in values):
        raise ModelLoadError(f"{path}: tensor {tensor.name!r} has values that are not finite and positive")
    return values


def check_shape(path: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise ModelLoadError when a tensor does not have the shape that the model's sizes ask for."""
    if found != expected:
        raise ModelLoadError(f"{path}: tensor {name!r} has shape {list(found)}, expected {list(expected)}")


def missing_tensor(path: Path, name: str) -> ModelLoadError:
    """The error for a tensor that a model needs and a file lacks."""
    return ModelLoadError(f"{path}: tensor {name!r} is missing")
