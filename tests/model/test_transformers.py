"""Live comparison with Hugging Face transformers on tiny random models, in the variety that goldens lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.reference import ReferenceOps
from model.harness import Harness
from model.tiny_models import TinyModel

pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("default")]

TOLERANCE = 1e-4  # both are f32, two layers deep
PROMPT = np.random.default_rng(1).integers(0, 128, 150).tolist()
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "f32": TinyModel(),
    "f16": TinyModel(type_name="F16"),
    "bf16": TinyModel(type_name="BF16"),
    "untied": TinyModel(tied=False),
    "untied, tying unset": TinyModel(tied=False, extra={"tie_word_embeddings": None}),
    "multi-head": TinyModel(num_kv_heads=4),
    "multi-query": TinyModel(num_kv_heads=1),
    "wide heads": TinyModel(head_dim=32),
    "rope base": TinyModel(rope={"rope_theta": 500000.0}),
    "llama3": TinyModel(rope={"rope_scaling": LLAMA3}),
    "linear": TinyModel(rope={"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "new spelling": TinyModel(rope={"rope_parameters": {**LLAMA3, "rope_theta": 20000.0}}),
    "mistral": TinyModel(
        extra={"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    ),
}


def theirs(folder: Path, **options: Any) -> np.ndarray:
    """Logits of every position, f32: [tokens, vocab]."""
    torch = pytest.importorskip("torch", reason="torch (extra `hf`) is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers (extra `hf`) is not installed")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([PROMPT])).logits[0].numpy()
    return logits


def check_against(path: Path, expected: np.ndarray) -> None:
    """Our logits, in chunks, at the end of each chunk."""
    ops = ReferenceOps(64, 8)
    harness = Harness(load_model(open_model_files(path), ops), ops, [len(PROMPT)])
    for start in range(0, len(PROMPT), 37):
        chunk = PROMPT[start : start + 37]
        ours = harness.step({0: chunk})[0]
        assert np.abs(ours - expected[start + len(chunk) - 1]).max() <= TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_folder(tmp_path: Path, name: str) -> None:
    """A folder of each kind gives transformers' logits."""
    folder = MODELS[name].write_folder(tmp_path)
    check_against(folder, theirs(folder))


def test_folder_that_transformers_wrote(tmp_path: Path) -> None:
    """A folder in the spelling of the installed transformers, in shards, gives its logits."""
    transformers = pytest.importorskip("transformers", reason="transformers (extra `hf`) is not installed")
    first = TinyModel(rope={"rope_scaling": LLAMA3}, tied=False).write_folder(tmp_path / "first")
    model = transformers.AutoModelForCausalLM.from_pretrained(first)
    model.save_pretrained(tmp_path / "second", max_shard_size="20KB")
    assert len(list((tmp_path / "second").glob("*.safetensors"))) > 1
    check_against(tmp_path / "second", theirs(tmp_path / "second"))


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf(tmp_path: Path, type_name: str, tied: bool) -> None:
    """A GGUF of each tensor type gives the logits of transformers on the weights as it dequantises them."""
    pytest.importorskip("gguf", reason="the gguf package (extra `hf`) is not installed")
    image = TinyModel(type_name=type_name, tied=tied).gguf()
    path = image.write(tmp_path / "tiny.gguf")
    check_against(path, theirs(tmp_path, gguf_file=path.name))
