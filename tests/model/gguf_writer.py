"""A small GGUF writer for tests: well-formed by default, and every field can be made to lie."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TYPE_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}


@dataclass
class Raw:
    """A metadata value given by its type id and bytes."""

    kind: int
    payload: bytes


@dataclass
class GGUFTensor:
    """A tensor's entry and bytes; `offset` None = where it really lies."""

    shape: tuple[int, ...]  # outermost first
    type_id: int
    data: bytes
    offset: int | None = None


@dataclass
class GGUFImage:
    """The content of a GGUF file."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[tuple[str | bytes, GGUFTensor]] = field(default_factory=list)
    version: int = 3
    magic: bytes = b"GGUF"
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32

    def add(self, name: str | bytes, array: np.ndarray, type_name: str = "F32") -> None:
        """Add a float array as F32, or a `[rows, row_bytes]` byte array of another type."""
        if type_name == "F32":
            self.tensors.append((name, GGUFTensor(array.shape, 0, array.astype("<f4").tobytes())))
        else:
            block_bytes, block = {
                "F16": (2, 1),
                "BF16": (2, 1),
                "Q4_0": (18, 32),
                "Q4_1": (20, 32),
                "Q8_0": (34, 32),
            }[type_name]
            shape = (array.shape[0], array.shape[1] // block_bytes * block)
            self.tensors.append((name, GGUFTensor(shape, TYPE_IDS[type_name], array.tobytes())))

    def to_bytes(self) -> bytes:
        """The whole file."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.metadata) if self.num_keys is None else self.num_keys
        out = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        for key, value in self.metadata.items():
            out += _string(key) + _value(value)
        body = b""
        for name, tensor in self.tensors:
            body += bytes(-len(body) % self.alignment)
            offset = len(body) if tensor.offset is None else tensor.offset
            out += _string(name) + struct.pack("<I", len(tensor.shape))
            out += b"".join(struct.pack("<Q", dim) for dim in reversed(tensor.shape))
            out += struct.pack("<IQ", tensor.type_id, offset)
            body += tensor.data
        return out + bytes(-len(out) % self.alignment) + body

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.to_bytes())
        return path


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, Raw):
        return struct.pack("<I", value.kind) + value.payload
    if isinstance(value, list):
        kind, encode = _kind(value[0])
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(encode(item) for item in value)
    kind, encode = _kind(value)
    return struct.pack("<I", kind) + encode(value)


def _kind(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return 7, lambda item: struct.pack("<?", item)
    if isinstance(value, int):
        return 4, lambda item: struct.pack("<I", item)
    if isinstance(value, float):
        return 6, lambda item: struct.pack("<f", item)
    return 8, _string
