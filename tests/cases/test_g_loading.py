"""Section G of the bug cases: model loading, as the command line shows it (parser and logits: tests/model)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cases.service import Service, bits
from model.tiny_models import TinyModel
from tiny import VOCAB_SIZE, write_tiny_model

MIB = 2**20


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def far_offset(data: bytes) -> bytes:
    """A tensor 2**40 bytes further on."""
    at = _first_entry(data) + 4 + 2 * 8 + 4
    return data[:at] + (2**40).to_bytes(8, "little") + data[at + 8 :]


def unknown_type(data: bytes) -> bytes:
    """A tensor of type 99."""
    at = _first_entry(data) + 4 + 2 * 8
    return data[:at] + (99).to_bytes(4, "little") + data[at + 4 :]


def no_elements(data: bytes) -> bytes:
    """A tensor with a dimension of 0."""
    at = _first_entry(data) + 4
    return data[:at] + bytes(8) + data[at + 8 :]


def endless_array(data: bytes) -> bytes:
    """A vocabulary of 2**60 entries."""
    name = b"tokenizer.ggml.tokens"
    at = data.index(name) + len(name) + 4 + 4
    return data[:at] + (2**60).to_bytes(8, "little") + data[at + 8 :]


TENSOR = b"blk.0.attn_q.weight"


def _first_entry(data: bytes) -> int:
    """Where the entry of TENSOR goes on after its name: dimensions, sizes, type, offset."""
    return data.index(TENSOR) + len(TENSOR)


def nothing(data: bytes) -> bytes:
    """The header as it is: only the file's length is wrong."""
    return data


SIZE = 98_362_432  # of the default model, bytes
HEADER_BYTES = 4 * MIB  # more than its metadata and tensor table
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "empty": (nothing, 0, "needs bytes up to"),
    "100 bytes": (nothing, 100, "file has 100"),
    "1 MiB": (nothing, MIB, f"file has {MIB}"),
    "half": (nothing, SIZE // 2, f"file has {SIZE // 2}"),
    "one byte less": (nothing, SIZE - 1, f"file has {SIZE - 1}"),
    "offset": (far_offset, SIZE, TENSOR.decode()),
    "type 99": (unknown_type, SIZE, TENSOR.decode()),
    "dimension 0": (no_elements, SIZE, TENSOR.decode()),
    "array of 2**60": (endless_array, SIZE, "tokenizer.ggml.tokens"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_b50_a_damaged_gguf_is_an_error_message(default_model: Path, tmp_path: Path, damage: str) -> None:
    """B50: the server ends within seconds, names the file and what is wrong, and nobody answers on the port."""
    change, size, named = DAMAGES[damage]
    assert default_model.stat().st_size == SIZE
    path = tmp_path / "damaged.gguf"
    with default_model.open("rb") as file:
        path.write_bytes(change(file.read(HEADER_BYTES)))
    os.truncate(path, size)  # the weights are a hole: nobody gets as far as reading them
    assert_refused(path, named)


def header_of_2_40_bytes(folder: Path) -> None:
    """A safetensors file whose header would be 2**40 bytes long."""
    (folder / "model.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{}")


def missing_shard(folder: Path) -> None:
    """An index that names a shard which is not there."""
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize(
    ("damage", "named"),
    [(header_of_2_40_bytes, "model.safetensors"), (missing_shard, "model-00001-of-00002.safetensors")],
)
def test_b50_a_damaged_folder_is_an_error_message(
    default_model: Path, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    """B50: the same for a Hugging Face folder, whose tokenizer is sound."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    damage(tmp_path)
    assert_refused(tmp_path, named, "--tokenizer", str(default_model))


def assert_refused(model: Path, named: str, *flags: str) -> None:
    """`chairlift serve MODEL` fails as it should: no signal, an exit code, a message of a few lines, no server."""
    port = free_port()
    command = [sys.executable, "-m", "chairlift", "serve", str(model), "--port", str(port), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert model.name in done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 2000
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_b51_gguf_and_folder_are_one_model(tmp_path: Path) -> None:
    """B51: a server of a GGUF file (rotated q and k rows, tied) and one of the folder with its weights agree."""
    gguf = write_tiny_model(tmp_path / "tiny.gguf", type_name="F32")
    tiny = TinyModel(vocab_size=VOCAB_SIZE, head_dim=16, type_name="F32")
    untied = TinyModel(vocab_size=VOCAB_SIZE, head_dim=16, type_name="F32", tied=False)
    folder = tiny.write_folder(tmp_path / "folder")
    other = untied.write_folder(tmp_path / "untied")

    def answers(model: Path) -> list[Any]:
        flags = ("--tokenizer", str(gguf), "--num-kv-blocks", "64")
        with closing(Service(model, flags, tmp_path / f"of-{model.name}")) as service:
            prompts = ([5], [77, 300], list(range(3, 60)))
            fields = {"max_tokens": 20, "temperature": 0, "logprobs": 3, "ignore_eos": True}
            return [bits(service.complete(prompt, **fields)["choices"][0]) for prompt in prompts]

    expected = answers(gguf)
    assert len(set(expected)) == 3
    assert answers(folder) == expected
    assert answers(other) != expected  # where a head is there, it is used
