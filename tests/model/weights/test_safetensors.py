"""The safetensors reader against well-formed, damaged and hostile files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.weights.hf_folder import HFFolderWeights
from chairlift.model.weights.safetensors import INDEX, SINGLE, read_safetensors, read_safetensors_folder
from model.tiny_models import TinyModel, write_safetensors

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def write(path: Path, header: Any, body: bytes = bytes(8), header_bytes: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if header_bytes is None else header_bytes) + text + body)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_bytes_come_back_as_written(tmp_path: Path, type_name: str) -> None:
    """A tensor of each dtype is the same bytes in memory as in the file."""
    model = TinyModel(type_name=type_name, num_layers=1)
    source = HFFolderWeights(read_safetensors_folder(model.write_folder(tmp_path)))
    assert set(source.names()) == set(model.weights)
    for name, expected in model.weights.items():
        found = source.get(name, expected.shape)
        assert found.type is expected.type
        assert np.array_equal(found.data, expected.data)
        assert not found.data.flags.writeable


def test_the_safetensors_library_agrees(tmp_path: Path) -> None:
    """What the library writes, with its metadata entry, we read; an empty tensor included."""
    library = pytest.importorskip("safetensors.numpy")
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 3), np.float16)}
    library.save_file(arrays, tmp_path / SINGLE, metadata={"format": "pt"})
    shard = read_safetensors(tmp_path / SINGLE)
    assert {name: info.shape for name, info in shard.tensors.items()} == {"a": (2, 3), "empty": (0, 3)}
    tensor = HFFolderWeights(read_safetensors_folder(tmp_path)).get("a", (2, 3))
    assert np.array_equal(tensor.data.view(np.float32), arrays["a"])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}, "dtype I64, which is not supported"),
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "dtype F8_E4M3"),
        ({"dtype": None, "shape": [2], "data_offsets": [0, 8]}, "dtype None"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "takes 12 bytes, its data_offsets 8"),
        ({"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**64]}, "needs bytes up to"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "takes 8 bytes, its data_offsets -8"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "shape"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "shape"),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, "shape"),
        ({"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}, "shape"),
        ({"dtype": "F32", "shape": "x", "data_offsets": [0, 8]}, "shape"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0]}, "data_offsets"),
        ({"dtype": "F32", "shape": [2]}, "data_offsets None"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "leaves a hole before it"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "tensors end at byte"),
        ("not an object", "has no description"),
    ],
)
def test_hostile_entry(tmp_path: Path, entry: Any, words: str) -> None:
    """Each lie a tensor's description can tell is refused, naming file and tensor."""
    assert words in refused(write(tmp_path / "m.safetensors", {"a": entry}))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "a JSON list, not an object"),
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "JSON"),
    ],
)
def test_hostile_json(tmp_path: Path, header: bytes, words: str) -> None:
    """A header that is no JSON object is refused, however it fails."""
    assert words in refused(write(tmp_path / "m.safetensors", header))


def test_header_length_is_checked(tmp_path: Path) -> None:
    """A header of 2**40 bytes, and one that ends a byte after the file, are refused before they are read."""
    assert "needs bytes up to 1099511627784" in refused(write(tmp_path / "a", GOOD, header_bytes=2**40))
    text = json.dumps(GOOD).encode()
    assert f"file has {8 + len(text)}" in refused(
        write(tmp_path / "b", text, b"", header_bytes=len(text) + 1)
    )
    (tmp_path / "c").write_bytes(b"abc")
    assert "file has 3" in refused(tmp_path / "c")


def test_overlap(tmp_path: Path) -> None:
    """Two tensors that share bytes are refused."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert "overlaps" in refused(write(tmp_path / "m", {"a": entry, "b": entry}))


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    """No length at which a file ends gives anything but a ModelLoadError."""
    data = write(tmp_path / "m", GOOD).read_bytes()
    for keep in range(len(data)):
        (tmp_path / "m").write_bytes(data[:keep])
        refused(tmp_path / "m")


def write_shards(folder: Path) -> TinyModel:
    model = TinyModel(num_layers=1)
    names = sorted(model.weights)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in shards.items():
        write_safetensors(folder / file, {name: model.weights[name] for name in part})
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return model


def test_shards(tmp_path: Path) -> None:
    """A model in several files is the same model."""
    model = write_shards(tmp_path)
    source = HFFolderWeights(read_safetensors_folder(tmp_path))
    assert all(np.array_equal(source.get(n, t.shape).data, t.data) for n, t in model.weights.items())


def test_missing_shard(tmp_path: Path) -> None:
    """A shard that the index names and the folder lacks is named in the error."""
    write_shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-2\.safetensors: is missing"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "../../etc/passwd"}, "not a file name"),
        ({"a": 5}, "not a file name"),
        ({}, "weight_map is missing or empty"),
        (None, "weight_map is missing or empty"),
        ({"nowhere": "model-1.safetensors"}, "tensor 'nowhere' is missing"),
    ],
)
def test_hostile_index(tmp_path: Path, weight_map: Any, words: str) -> None:
    """An index cannot point outside its folder, at nothing, or at a tensor that is not there."""
    write_shards(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelLoadError, match=words):
        read_safetensors_folder(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    """A folder without safetensors says what it lacks."""
    with pytest.raises(ModelLoadError, match="only safetensors weights are supported"):
        read_safetensors_folder(tmp_path)


def test_file_that_changed_after_its_header_was_read(tmp_path: Path) -> None:
    """A file of another size than when it was checked is refused rather than read out of bounds."""
    header = read_safetensors_folder(TinyModel(num_layers=1).write_folder(tmp_path))
    (tmp_path / SINGLE).write_bytes((tmp_path / SINGLE).read_bytes()[:-4])
    with pytest.raises(ModelLoadError, match="when its header was read"):
        HFFolderWeights(header)
