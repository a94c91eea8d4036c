"""The GGUF reader against well-formed, damaged and hostile files."""

from __future__ import annotations

import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.weights.gguf import read_gguf
from model.gguf_writer import GGUFImage, GGUFTensor, Raw


def small_image() -> GGUFImage:
    image = GGUFImage(
        {
            "general.architecture": "llama",
            "a.number": 7,
            "a.float": 0.5,
            "a.flag": True,
            "tokenizer.ggml.tokens": ["a", "é", "", "世界"],
            "tokenizer.ggml.token_type": [1, 2, 3],
            "scores": [0.25, -1.0],
        }
    )
    image.add("x.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    image.add("y.weight", np.zeros((4, 20), np.uint8), "Q4_1")
    return image


def refused(tmp_path: Path, image: GGUFImage | bytes) -> str:
    """Write, read, and return the error's message, which must name the file."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(image if isinstance(image, bytes) else image.to_bytes())
    tracemalloc.start()
    with pytest.raises(ModelLoadError) as caught:
        read_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20, "a bad file must not make us allocate"
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_what_the_writer_wrote(tmp_path: Path, version: int) -> None:
    """Metadata of every kind and the tensor table come back as written, in both versions of the format."""
    image = small_image()
    image.version = version
    header = read_gguf(image.write(tmp_path / "m.gguf"))
    assert header.metadata == image.metadata
    x, y = header.tensors["x.weight"], header.tensors["y.weight"]
    assert (x.type_name, x.shape, x.num_bytes) == ("F32", (2, 3), 24)
    assert (y.type_name, y.shape, y.num_bytes) == ("Q4_1", (4, 32), 80)
    data = header.path.read_bytes()
    assert np.frombuffer(data[x.start : x.start + x.num_bytes], "<f4").tolist() == [0, 1, 2, 3, 4, 5]
    assert y.start % 32 == 0


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        (0, "B", 255),
        (1, "b", -1),
        (2, "H", 65535),
        (3, "h", -2),
        (5, "i", -3),
        (10, "Q", 2**63),
        (11, "q", -4),
        (12, "d", 0.1),
    ],
)
def test_every_scalar_type(tmp_path: Path, kind: int, layout: str, value: Any) -> None:
    """Each numeric type is read with its own width and sign, alone and in an array."""
    one = struct.pack("<" + layout, value)
    image = GGUFImage({"one": Raw(kind, one), "many": Raw(9, struct.pack("<IQ", kind, 3) + 3 * one)})
    metadata = read_gguf(image.write(tmp_path / "m.gguf")).metadata
    assert metadata == {"one": value, "many": [value] * 3}


def test_alignment_is_honoured(tmp_path: Path) -> None:
    """Tensors are found where general.alignment says, not at the default of 32."""
    image = small_image()
    image.metadata["general.alignment"] = 128
    image.alignment = 128
    header = read_gguf(image.write(tmp_path / "m.gguf"))
    assert all(info.start % 128 == 0 for info in header.tensors.values())


def test_the_gguf_package_agrees(tmp_path: Path) -> None:
    """An independent reader sees the same tensors at the same offsets."""
    gguf = pytest.importorskip("gguf", reason="the gguf package (extra `hf`) is the oracle")
    image = small_image()
    for key in ("a.flag", "scores"):
        image.metadata.pop(key)
    path = image.write(tmp_path / "m.gguf")
    theirs = {
        t.name: (t.tensor_type.name, tuple(t.shape), t.data_offset, t.n_bytes)
        for t in gguf.GGUFReader(path).tensors
    }
    ours = {
        i.name: (i.type_name, i.shape[::-1], i.start, i.num_bytes) for i in read_gguf(path).tensors.values()
    }
    assert ours == theirs


@pytest.mark.parametrize("keep", [0, 1, 23, 24, 60, 100, 250, 400, -1])
def test_truncated_anywhere(tmp_path: Path, keep: int) -> None:
    """A file cut off at any place says how many bytes it needs and has."""
    data = small_image().to_bytes()
    cut = data[: keep if keep >= 0 else len(data) + keep]
    message = refused(tmp_path, cut)
    assert f"file has {len(cut)}" in message
    assert "needs bytes up to" in message


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    """No length at which a file ends gives anything but a ModelLoadError."""
    data = small_image().to_bytes()
    path = tmp_path / "cut.gguf"
    for keep in range(len(data)):
        path.write_bytes(data[:keep])
        with pytest.raises(ModelLoadError):
            read_gguf(path)


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    """Flipped bytes in the header either read as something or raise ModelLoadError; nothing else escapes."""
    data = bytearray(small_image().to_bytes())
    rng = np.random.default_rng(5)
    path = tmp_path / "noise.gguf"
    for _ in range(500):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data) - 120, size=3):
            damaged[position] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read_gguf(path)
        except ModelLoadError:
            continue


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A path that is not there, or is a folder, is a ModelLoadError."""
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelLoadError, match="cannot be read"):
            read_gguf(path)


def header_cases() -> dict[str, tuple[GGUFImage, str]]:
    cases: dict[str, tuple[GGUFImage, str]] = {}

    def case(name: str, words: str, **changes: Any) -> GGUFImage:
        image = small_image()
        for key, value in changes.items():
            setattr(image, key, value)
        cases[name] = (image, words)
        return image

    case("magic", "not a GGUF file", magic=b"GGML")
    case("version 1", "version 1", version=1)
    case("big endian", "big-endian", version=3 << 24)
    case("tensor count", "tensor count needs bytes up to", num_tensors=2**63)
    case("key count", "metadata count needs bytes up to", num_keys=2**60)
    case("array length", "huge needs bytes up to").metadata["huge"] = Raw(9, struct.pack("<IQ", 4, 2**60))
    case("string array length", "huge needs").metadata["huge"] = Raw(9, struct.pack("<IQ", 8, 2**60))
    case("string length", "huge needs").metadata["huge"] = Raw(8, struct.pack("<Q", 2**64 - 1))
    many = struct.pack("<IQ", 8, 2) + struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 2**62)
    case("string length in array", "huge needs").metadata["huge"] = Raw(9, many)
    case("value type", "type id 13").metadata["k"] = Raw(13, b"")
    case("array element type", "array of type id 99").metadata["k"] = Raw(9, struct.pack("<IQ", 99, 1))
    case("nested array", "array of arrays").metadata["k"] = Raw(9, struct.pack("<IQ", 9, 1))
    case("key not UTF-8", "not UTF-8").metadata["k"] = Raw(8, struct.pack("<Q", 2) + b"\xff\xfe")
    bad_token = struct.pack("<IQQ", 8, 1, 1) + b"\xc3"
    case("token not UTF-8", "k: .* is not UTF-8").metadata["k"] = Raw(9, bad_token)
    case("alignment 0", "general.alignment is 0").metadata["general.alignment"] = 0
    case("alignment 12", "general.alignment is 12").metadata["general.alignment"] = 12
    case("alignment text", "general.alignment is 'x'").metadata["general.alignment"] = "x"
    case("split", "one of 3 parts of a split GGUF").metadata["split.count"] = 3

    def tensor_case(name: str, words: str, tensor: GGUFTensor, tensor_name: str | bytes = "t") -> None:
        case(name, words).tensors.append((tensor_name, tensor))

    tensor_case("offset", r"'t' needs bytes up to 1\d{12}, file has", GGUFTensor((4,), 0, bytes(16), 2**40))
    tensor_case("offset wraps", "'t' needs bytes up to", GGUFTensor((8,), 0, bytes(32), 2**64 - 32))
    tensor_case("offset unaligned", "offset 1, not a multiple of 32", GGUFTensor((4,), 0, bytes(16), 1))
    tensor_case("type 99", "'t' has type with id 99", GGUFTensor((32,), 99, b""))
    tensor_case("type Q6_K", "'t' has type Q6_K", GGUFTensor((256,), 14, b""))
    tensor_case("type Q5_0", "'t' has type Q5_0", GGUFTensor((32,), 6, b""))
    tensor_case("removed type", "'t' has type with id 4", GGUFTensor((32,), 4, b""))
    tensor_case("dims [0]", r"dimensions \[0\]", GGUFTensor((0,), 0, b""))
    tensor_case("no dims", "has 0 dimensions", GGUFTensor((), 0, b""))
    tensor_case("5 dims", "has 5 dimensions", GGUFTensor((1, 1, 1, 1, 1), 0, bytes(4)))
    tensor_case("huge dims", "'t' needs bytes up to", GGUFTensor((2**63, 2**63), 0, b""))
    tensor_case("half a block", "rows of 33 values", GGUFTensor((2, 33), 3, bytes(40)))
    tensor_case("twice", "'x.weight' appears twice", GGUFTensor((1,), 0, bytes(4)), "x.weight")
    tensor_case("name not UTF-8", "not UTF-8", GGUFTensor((1,), 0, bytes(4)), b"\xff")
    return cases


@pytest.mark.parametrize("name", header_cases())
def test_hostile_header(tmp_path: Path, name: str) -> None:
    """Each lie a header can tell is refused with the file, the key or tensor and the numbers, without allocating."""
    image, words = header_cases()[name]
    assert re.search(words, refused(tmp_path, image))


def test_duplicate_key(tmp_path: Path) -> None:
    """A metadata key that appears twice is refused: readers would disagree on which one counts."""
    image = GGUFImage({"aaa": 1, "bbb": 2})
    assert "'aaa' appears twice" in refused(tmp_path, image.to_bytes().replace(b"bbb", b"aaa"))


def test_a_large_vocabulary_is_quick(tmp_path: Path) -> None:
    """50 thousand tokens and merges are read in well under a second (rough: the machine is shared)."""
    words = [f"token{i}" for i in range(50_000)]
    path = GGUFImage({"tokens": words, "merges": words}).write(tmp_path / "m.gguf")
    start = time.perf_counter()
    header = read_gguf(path)
    assert time.perf_counter() - start < 1.0
    assert header.metadata["tokens"] == words
