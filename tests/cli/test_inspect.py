"""`chairlift inspect`: what it prints, as text and as JSON, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from model.tiny_models import TinyModel


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", *words]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(printed(capsys, "--json", *words))
    return value


def test_what_a_file_is(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    """Sizes, totals and a line for each tensor with type, shape and bytes; no losses unless asked for."""
    text = printed(capsys, str(tiny_model))
    assert "architecture  llama" in text
    assert "vocabulary    512" in text
    assert "15 Q4_0, 5 F32" in text
    line = next(line for line in text.splitlines() if line.startswith("blk.0.attn_k.weight"))
    assert line.split() == ["blk.0.attn_k.weight", "Q4_0", "32", "x", "64", "1,152"]
    assert "error" not in text


@pytest.mark.parametrize(("quantization", "bits"), [("q8", 8.5), ("q4", 5.0)])
def test_what_quantising_costs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, quantization: str, bits: float
) -> None:
    """With --quantization each matrix has its error and bits, and the totals are those of the loaded model."""
    folder = str(TinyModel().write_folder(tmp_path))
    found = document(capsys, folder, "--quantization", quantization)
    by_name = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert "quantized" not in by_name["model.norm.weight"]
    layer = by_name["model.layers.0.mlp.up_proj.weight"]
    assert layer["type"] == "F32"
    assert layer["quantized"]["bits_per_weight"] == bits
    assert 0.001 < layer["quantized"]["relative_rms_error"] < 0.1
    assert by_name["model.embed_tokens.weight"]["quantized"]["type"] == "Q8_0"
    total = found["quantization"]
    assert total["bytes"] == sum(tensor.get("quantized", tensor)["bytes"] for tensor in found["tensors"])
    assert total["bytes"] < found["bytes"] / 3
    assert total["notices"] == []
    text = printed(capsys, folder, "--quantization", quantization)
    assert f"relative RMS error {total['quantized']['relative_rms_error']:.3%}" in text
    assert "rel. RMS error  largest error" in text


def test_nothing_to_quantise(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    """A file that is quantised already is said to be, and has no loss."""
    text = printed(capsys, str(tiny_model), "--quantization", "q4")
    assert "note: --quantization q4 changes nothing" in text
    assert document(capsys, str(tiny_model), "--quantization", "q4")["quantization"]["quantized"] is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nope.gguf", "no model at"),
        (
            lambda path: _write(path / "x.gguf", b"plain text, and more of it than a header"),
            "not a GGUF file",
        ),
        (lambda path: _write(path / "x.gguf", b""), "the header needs bytes up to 24, file has 0"),
        (lambda path: path, "neither a .gguf file nor a Hugging Face folder"),
    ],
)
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, make: Any, message: str) -> None:
    """What is no model is one line with its path, and exit code 3."""
    path = make(tmp_path)
    assert main(["inspect", str(path)]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert str(path) in shown.err


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
