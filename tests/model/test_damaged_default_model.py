"""B50 on the real file: damaged copies of the default model are refused in no time, with the numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.files import open_model_files
from chairlift.model.weights.gguf import read_gguf
from model.default_model_path import default_model_path

pytestmark = pytest.mark.model

HEADER_BYTES = 4 << 20  # more than metadata and tensor table


def copy(tmp_path: Path, change: Callable[[bytes], bytes], size: int | None = None) -> Path:
    """The default model with its header changed, its weights a hole of the right length."""
    source = default_model_path()
    path = tmp_path / "damaged.gguf"
    with source.open("rb") as file:
        path.write_bytes(change(file.read(HEADER_BYTES)))
    os.truncate(path, source.stat().st_size if size is None else size)
    return path


def refusal(path: Path) -> str:
    start = time.perf_counter()
    with pytest.raises(ModelLoadError) as caught:
        open_model_files(path)
    assert time.perf_counter() - start < 5
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_an_undamaged_copy_is_read(tmp_path: Path) -> None:
    """The way these copies are made is sound: unchanged, one reads like the original (tied, 272 tensors)."""
    header = read_gguf(copy(tmp_path, lambda data: data))
    assert len(header.tensors) == 272
    assert "output.weight" not in header.tensors


@pytest.mark.parametrize("size", [0, 100, 1 << 20, 49_181_216, 98_362_431])
def test_truncated(tmp_path: Path, size: int) -> None:
    """Cut to nothing, to 100 bytes, 1 MiB, half, or by a single byte."""
    message = refusal(copy(tmp_path, lambda data: data, size))
    assert "needs bytes up to" in message
    assert f"file has {size}" in message


def entry(data: bytes, name: bytes) -> int:
    """Where the fields of a 2-D tensor's entry begin, after its name: dimensions, 2 sizes, type, offset."""
    return data.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)


def patched(data: bytes, at: int, value: int, width: int) -> bytes:
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def test_offset_far_away(tmp_path: Path) -> None:
    """A tensor 2**40 bytes further on."""

    def change(data: bytes) -> bytes:
        at = entry(data, b"blk.3.ffn_up.weight") + 24
        return patched(data, at, int.from_bytes(data[at : at + 8], "little") + 2**40, 8)

    assert "'blk.3.ffn_up.weight' needs bytes up to 10995" in refusal(copy(tmp_path, change))


def test_unknown_type(tmp_path: Path) -> None:
    """A tensor of type 99."""
    path = copy(tmp_path, lambda data: patched(data, entry(data, b"blk.3.ffn_up.weight") + 20, 99, 4))
    assert "'blk.3.ffn_up.weight' has type with id 99" in refusal(path)


def test_zero_dimension(tmp_path: Path) -> None:
    """A tensor with a dimension of 0."""
    path = copy(tmp_path, lambda data: patched(data, entry(data, b"blk.3.ffn_up.weight") + 4, 0, 8))
    assert "'blk.3.ffn_up.weight' has dimensions [0, 1536]" in refusal(path)


def test_endless_array(tmp_path: Path) -> None:
    """A vocabulary of 2**60 tokens."""

    def change(data: bytes) -> bytes:
        key = b"tokenizer.ggml.tokens"
        return patched(data, data.index(key) + len(key) + 8, 2**60, 8)

    assert "tokenizer.ggml.tokens needs bytes up to" in refusal(copy(tmp_path, change))
