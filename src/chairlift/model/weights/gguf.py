"""Memory-mapped, bounds-checked reader of GGUF v2 and v3 (specification: docs/gguf.md of ggml).

A file may come from anywhere, so every count, length, offset and alignment is held against the size of the file
before it is used; nothing is allocated on a file's word alone. Standard library only until a tensor is read.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.model.weights.mapped import TensorInfo, map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
_HEADER_BYTES = 24  # magic, version, two counts
_MIN_KEY_BYTES = 13  # an empty name, a type, one byte
_MIN_TENSOR_BYTES = 32  # an empty name, one dimension, type, offset

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Metadata value types by id; 8 is a string and 9 an array.
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9

# ggml_type ids: name, values in a block, bytes of a block. The name is also that of `ops.interface.TensorType`.
_SUPPORTED = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    30: ("BF16", 1, 2),
}
_REFUSED = {
    **dict(enumerate(["Q5_0", "Q5_1"], start=6)),
    **dict(enumerate(["Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"], start=9)),
    **dict(
        enumerate(["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"], start=16)
    ),
    **dict(enumerate(["I8", "I16", "I32", "I64", "F64", "IQ1_M"], start=24)),
    **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All of a GGUF file but the weights themselves; holds neither the file nor a mapping of it."""

    path: Path
    file_size: int
    metadata: dict[str, Any]  # key -> int, float, bool, str, or a list of those
    tensors: dict[str, TensorInfo]


def read_gguf(path: Path) -> GGUFHeader:
    """Read metadata and tensor table, and check that every tensor lies inside the file.

    Raises:
        ModelLoadError: the file is missing, damaged, hostile, split, or holds a tensor type we lack; the
            message names the file, the key or tensor, and the numbers.
    """
    with map_file(path, min_bytes=_HEADER_BYTES) as data:
        reader = _Reader(path, data)
        _check_magic(reader)
        num_tensors = reader.count("tensor count", min_bytes=_MIN_TENSOR_BYTES)
        num_keys = reader.count("metadata count", min_bytes=_MIN_KEY_BYTES)
        metadata = _read_metadata(reader, num_keys)
        tensors = _read_tensors(reader, num_tensors, metadata)
        return GGUFHeader(path, len(data), metadata, tensors)


def _check_magic(reader: _Reader) -> None:
    magic = reader.take(4, "magic")
    if magic != MAGIC:
        raise reader.error(f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = reader.u32("version")
    if version not in VERSIONS:
        swapped = " (a big-endian file?)" if int.from_bytes(_U32.pack(version), "big") in VERSIONS else ""
        raise reader.error(
            f"GGUF version {version}{swapped} is not supported; supported: 2, 3, little-endian"
        )


def _read_metadata(reader: _Reader, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        key = reader.string(f"name of metadata key {index}")
        if key in metadata:
            raise reader.error(f"metadata key {key!r} appears twice")
        metadata[key] = reader.value(key)
    num_splits = metadata.get("split.count", 0)
    if isinstance(num_splits, int) and num_splits > 1:
        raise reader.error(
            f"one of {num_splits} parts of a split GGUF, which is not supported; "
            "join them with llama-gguf-split --merge"
        )
    return metadata


def _read_tensors(reader: _Reader, num_tensors: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise reader.error(f"general.alignment is {alignment!r}, not a positive multiple of 8")
    infos = [_read_tensor_info(reader, index) for index in range(num_tensors)]
    data_start = -(-reader.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in infos:
        if info.name in tensors:
            raise reader.error(f"tensor {info.name!r} appears twice")
        if info.start % alignment:
            raise reader.error(f"tensor {info.name!r} has offset {info.start}, not a multiple of {alignment}")
        stop = data_start + info.start + info.num_bytes
        if stop > reader.size:
            raise reader.error(f"tensor {info.name!r} needs bytes up to {stop}, file has {reader.size}")
        tensors[info.name] = TensorInfo(
            info.name, info.type_name, info.shape, data_start + info.start, info.num_bytes
        )
    return tensors


def _read_tensor_info(reader: _Reader, index: int) -> TensorInfo:
    """One entry of the table; its `start` still counts from the beginning of the data section."""
    name = reader.string(f"name of tensor {index}")
    num_dims = reader.u32(f"dimensions of tensor {name!r}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise reader.error(f"tensor {name!r} has {num_dims} dimensions, outside [1, {MAX_DIMS}]")
    dims = [reader.u64(f"dimensions of tensor {name!r}") for _ in range(num_dims)]  # innermost first
    type_id = reader.u32(f"type of tensor {name!r}")
    if type_id not in _SUPPORTED:
        what = _REFUSED.get(type_id, f"with id {type_id}")
        good = ", ".join(sorted(item[0] for item in _SUPPORTED.values()))
        raise reader.error(f"tensor {name!r} has type {what}, which is not supported; supported: {good}")
    type_name, block_values, block_bytes = _SUPPORTED[type_id]
    num_values = 1
    for dim in dims:
        num_values *= dim
    if num_values == 0:
        raise reader.error(f"tensor {name!r} has dimensions {dims}; none may be 0")
    if dims[0] % block_values:
        raise reader.error(
            f"tensor {name!r} has rows of {dims[0]} values, not whole blocks of {block_values}"
        )
    offset = reader.u64(f"offset of tensor {name!r}")
    return TensorInfo(
        name, type_name, tuple(reversed(dims)), offset, num_values // block_values * block_bytes
    )


class _Reader:
    """A cursor over the file that cannot leave it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.size = len(data)
        self.position = 0
        self._data = data

    def error(self, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {message}")

    def take(self, num_bytes: int, what: str) -> bytes:
        return self._data[self._advance(num_bytes, what) : self.position]

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._data, self._advance(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._data, self._advance(8, what))[0])

    def count(self, what: str, min_bytes: int) -> int:
        """A number of items that take at least `min_bytes` each, and so cannot exceed what is left of the file."""
        count = self.u64(what)
        self._check(count * min_bytes, what)
        return count

    def string(self, what: str) -> str:
        return self._decode(self.take(self.u64(what), what), what)

    def value(self, key: str) -> Any:
        """One metadata value: a number, a bool, a string, or a list of those."""
        kind = self.u32(key)
        return self._array(key) if kind == _ARRAY else self._scalar_reader(kind, key)()

    def _scalar_reader(self, kind: int, key: str) -> Callable[[], Any]:
        if kind == _STRING:
            return lambda: self.string(key)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self.error(f"metadata key {key!r} has type id {kind}, which GGUF does not define")
        return lambda: layout.unpack_from(self._data, self._advance(layout.size, key))[0]

    def _array(self, key: str) -> list[Any]:
        kind = self.u32(key)
        if kind == _STRING:
            return self._strings(self.count(key, min_bytes=8), key)
        layout = _SCALARS.get(kind)
        if layout is None:
            what = "arrays" if kind == _ARRAY else f"type id {kind}"
            raise self.error(f"metadata key {key!r} is an array of {what}, which is not supported")
        count = self.count(key, min_bytes=layout.size)
        block = self.take(count * layout.size, key)
        return list(struct.unpack(f"<{count}{layout.format[-1]}", block))

    def _strings(self, count: int, key: str) -> list[str]:
        """A vocabulary has 50 to 250 thousand of them, so this loop calls nothing it can do without."""
        data, size, position, unpack_length = self._data, self.size, self.position, _U64.unpack_from
        pieces = []
        for _ in range(count):
            start = position + 8
            if start > size:
                position = start
                break
            position = start + unpack_length(data, position)[0]
            pieces.append(data[start:position])
        self._advance(position - self.position, key)  # raises when the walk above left the file
        try:
            return [piece.decode() for piece in pieces]
        except UnicodeDecodeError as error:
            raise self.error(f"{key}: {error.object[:40]!r} is not UTF-8") from None

    def _decode(self, piece: bytes, what: str) -> str:
        try:
            return piece.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what}: {piece[:40]!r} is not UTF-8") from None

    def _advance(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` and return where they begin."""
        self._check(num_bytes, what)
        start = self.position
        self.position += num_bytes
        return start

    def _check(self, num_bytes: int, what: str) -> None:
        stop = self.position + num_bytes
        if stop > self.size:
            raise self.error(f"{what} needs bytes up to {stop}, file has {self.size}")
