"""Bounds-checked reader of safetensors files, in one piece or in shards. Standard library only until a tensor is read.

Our own because bfloat16 is not a numpy dtype and we want the bytes: the format is eight bytes of header length,
a JSON header, and the data, without holes or overlaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.model.weights.mapped import TensorInfo, map_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the format
MAX_DIMS = 8
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class Shard:
    """The header of one safetensors file."""

    path: Path
    file_size: int
    tensors: dict[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The headers of all shards of a model; holds neither files nor mappings."""

    path: Path  # the folder
    shards: tuple[Shard, ...]


def read_safetensors_folder(folder: Path) -> SafetensorsHeader:
    """Read the headers of `model.safetensors`, or of every shard that the index names.

    Raises:
        ModelLoadError: a file is missing, damaged or hostile, or holds a dtype other than F32, F16 and BF16.
    """
    if (folder / SINGLE).exists():
        return SafetensorsHeader(folder, (read_safetensors(folder / SINGLE),))
    if not (folder / INDEX).exists():
        raise ModelLoadError(
            f"{folder}: has neither {SINGLE} nor {INDEX}; only safetensors weights are supported"
        )
    weight_map = _read_index(folder / INDEX)
    shards = tuple(read_safetensors(folder / name) for name in sorted(set(weight_map.values())))
    by_name = {shard.path.name: shard for shard in shards}
    for tensor, shard_name in weight_map.items():
        if tensor not in by_name[shard_name].tensors:
            raise ModelLoadError(
                f"{folder / shard_name}: tensor {tensor!r} is missing, though {INDEX} puts it there"
            )
    return SafetensorsHeader(folder, shards)


def read_safetensors(path: Path) -> Shard:
    """Read and check the header of one file; see `read_safetensors_folder` for errors."""
    with map_file(path, min_bytes=8) as data:
        size = len(data)
        header_bytes = int.from_bytes(data[:8], "little")
        if header_bytes > min(MAX_HEADER_BYTES, size - 8):
            raise ModelLoadError(
                f"{path}: header needs bytes up to {8 + header_bytes}, file has {size} (limit {MAX_HEADER_BYTES})"
            )
        entries = parse_json(path, data[8 : 8 + header_bytes])
    entries.pop("__metadata__", None)
    start = 8 + header_bytes
    tensors = {name: _tensor_info(path, name, entry, start, size) for name, entry in entries.items()}
    _check_packed(path, tensors, start, size)
    return Shard(path, size, tensors)


def parse_json(path: Path, text: bytes) -> dict[str, Any]:
    """Parse a JSON object, refusing a key that appears twice; raises ModelLoadError naming the file."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return value


def _read_index(path: Path) -> dict[str, str]:
    weight_map = parse_json(path, path.read_bytes()).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{path}: weight_map is missing or empty")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelLoadError(f"{path}: tensor {tensor!r} is in {shard!r}, which is not a file name")
        if not (path.parent / shard).exists():
            raise ModelLoadError(f"{path.parent / shard}: is missing; {INDEX} puts tensor {tensor!r} there")
    return weight_map


def _tensor_info(path: Path, name: str, entry: Any, data_start: int, file_size: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise ModelLoadError(f"{path}: tensor {name!r} has no description")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        good = ", ".join(_ITEM_BYTES)
        raise ModelLoadError(
            f"{path}: tensor {name!r} has dtype {dtype}, which is not supported; supported: {good}"
        )
    shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if shape is None or len(shape) > MAX_DIMS:
        raise ModelLoadError(f"{path}: tensor {name!r} has shape {str(entry.get('shape'))[:80]}")
    if offsets is None or len(offsets) != 2:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has data_offsets {str(entry.get('data_offsets'))[:80]}"
        )
    start, stop = data_start + offsets[0], data_start + offsets[1]
    if stop > file_size:
        raise ModelLoadError(f"{path}: tensor {name!r} needs bytes up to {stop}, file has {file_size}")
    num_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if stop - start != num_bytes:
        raise ModelLoadError(
            f"{path}: tensor {name!r} of {dtype} {list(shape)} takes {num_bytes} bytes, its data_offsets {stop - start}"
        )
    return TensorInfo(name, dtype, shape, start, num_bytes)


def _counts(value: Any) -> tuple[int, ...] | None:
    good = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return tuple(value) if good else None


def _check_packed(path: Path, tensors: dict[str, TensorInfo], data_start: int, file_size: int) -> None:
    position = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.start, info.num_bytes)):
        if info.start != position:
            what = "overlaps the one before it" if info.start < position else "leaves a hole before it"
            raise ModelLoadError(
                f"{path}: tensor {info.name!r} starts at byte {info.start}, not {position}: it {what}"
            )
        position += info.num_bytes
    if position != file_size:
        raise ModelLoadError(f"{path}: tensors end at byte {position}, file has {file_size}")
