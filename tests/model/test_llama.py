"""Llama from both file formats on the reference backend: one model, the same logits, nothing silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.reference import ReferenceOps
from model.gguf_writer import GGUFTensor
from model.harness import Harness
from model.tiny_models import TinyModel, gguf_name

PROMPT = [5, 17, 99, 3, 3, 64, 127, 0, 42, 8, 15, 16, 23, 42, 77, 101, 12, 9, 30, 31]


def logits_of(path: Path, prompt: list[int] = PROMPT, chunk: int = 64) -> np.ndarray:
    ops = ReferenceOps(64, 8)
    model = load_model(open_model_files(path), ops)
    return Harness(model, ops, [len(prompt)]).prefill(0, prompt, chunk)


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf_and_folder_agree(tmp_path: Path, type_name: str, tied: bool) -> None:
    """The same weights give the same bits from GGUF (q and k rows paired) and from a Hugging Face folder (halved)."""
    model = TinyModel(type_name=type_name, tied=tied)
    from_gguf = logits_of(model.gguf().write(tmp_path / "m.gguf"))
    from_folder = logits_of(model.write_folder(tmp_path / "hf"))
    assert np.array_equal(from_gguf, from_folder)
    assert np.isfinite(from_gguf).all()
    assert from_gguf.std() > 0.01


@pytest.mark.parametrize("sizes", [(4, 4, 16), (6, 2, 8), (3, 1, 32), (1, 1, 64)])
def test_head_layouts(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    """Multi-head, grouped and multi-query attention, with q wider and narrower than the hidden size."""
    heads, kv_heads, dim = sizes
    model = TinyModel(num_heads=heads, num_kv_heads=kv_heads, head_dim=dim)
    from_gguf = logits_of(model.gguf().write(tmp_path / "m.gguf"))
    assert np.array_equal(from_gguf, logits_of(model.write_folder(tmp_path / "hf")))


def test_tied_when_the_head_is_absent(tmp_path: Path) -> None:
    """With tie_word_embeddings unset, a file without a head uses its embedding and one with a head uses the head."""
    logits = {}
    for name, tied in (("tied", True), ("untied", False)):
        unset = logits_of(
            TinyModel(tied=tied, extra={"tie_word_embeddings": None}).write_folder(tmp_path / name)
        )
        assert np.array_equal(unset, logits_of(TinyModel(tied=tied).write_folder(tmp_path / name)))
        logits[name] = unset
    assert not np.allclose(logits["tied"], logits["untied"])


def test_promised_head_that_is_missing(tmp_path: Path) -> None:
    """tie_word_embeddings false without lm_head.weight is a damaged folder, not a tied model."""
    folder = TinyModel(tied=True, extra={"tie_word_embeddings": False}).write_folder(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'lm_head\.weight' is missing"):
        logits_of(folder)


def test_chunks_give_the_same_bits(tmp_path: Path) -> None:
    """A prompt computed at once, in chunks, and token by token ends in the same logits."""
    path = TinyModel().gguf().write(tmp_path / "m.gguf")
    whole = logits_of(path)
    assert np.array_equal(whole, logits_of(path, chunk=7))
    assert np.array_equal(whole, logits_of(path, chunk=1))


def test_neighbours_do_not_matter(tmp_path: Path) -> None:
    """A sequence beside others in a ragged step gets the bits it gets alone."""
    path = TinyModel().gguf().write(tmp_path / "m.gguf")
    ops = ReferenceOps(64, 8)
    harness = Harness(load_model(open_model_files(path), ops), ops, [40, 40, 40])
    harness.step({1: [9, 9, 9]}, logits=False)
    together = harness.step({0: PROMPT, 1: [4], 2: [7, 8, 9, 10]})
    assert np.array_equal(together[0], logits_of(path))
    assert np.array_equal(together[1], logits_of(path, [9, 9, 9, 4]))


def test_no_logits_rows(tmp_path: Path) -> None:
    """A step whose logits nobody wants computes none, and still fills the cache."""
    path = TinyModel().gguf().write(tmp_path / "m.gguf")
    ops = ReferenceOps(64, 8)
    harness = Harness(load_model(open_model_files(path), ops), ops, [40])
    assert harness.step({0: PROMPT[:10]}, logits=False).shape == (0, 128)
    assert np.array_equal(harness.step({0: PROMPT[10:]})[0], logits_of(path))


def test_rope_frequencies_of_a_gguf(tmp_path: Path) -> None:
    """rope_freqs.weight of a GGUF is Llama 3.1 scaling of config.json in another form."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = TinyModel(rope={"rope_scaling": scaling})
    image = model.gguf()
    image.add("rope_freqs.weight", _llama3_divisors(16, 10000.0, scaling))
    scaled = logits_of(image.write(tmp_path / "m.gguf"))
    assert np.allclose(scaled, logits_of(model.write_folder(tmp_path / "hf")), atol=1e-5)
    assert not np.allclose(scaled, logits_of(TinyModel().gguf().write(tmp_path / "plain.gguf")), atol=1e-3)


def _llama3_divisors(dim: int, base: float, scaling: dict[str, Any]) -> np.ndarray:
    """As llama.cpp's converter computes them."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * base ** (i / dim)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_linear_scaling(tmp_path: Path) -> None:
    """Positions divided by 4 change the logits, in the same way from both formats and both spellings."""
    image = TinyModel().gguf()
    image.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    scaled = logits_of(image.write(tmp_path / "m.gguf"))
    old = {"rope_scaling": {"type": "linear", "factor": 4.0}}
    new = {
        "rope_theta": None,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0},
    }
    for name, rope in (("old", old), ("new", new)):
        assert np.array_equal(scaled, logits_of(TinyModel(rope=rope).write_folder(tmp_path / name)))
    assert not np.allclose(scaled, logits_of(TinyModel().gguf().write(tmp_path / "plain.gguf")), atol=1e-3)


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"]
)
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    """A tensor that is not there is named as the file would name it."""
    model = TinyModel()
    del model.weights[name]
    with pytest.raises(ModelLoadError, match=f"{gguf_name(name)}' is missing"):
        logits_of(model.gguf().write(tmp_path / "m.gguf"))
    with pytest.raises(ModelLoadError, match=f"{name}' is missing"):
        logits_of(model.write_folder(tmp_path / "hf"))


@pytest.mark.parametrize(
    "key", ["llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count_kv"]
)
def test_unexpected_shape(tmp_path: Path, key: str) -> None:
    """Metadata that disagrees with the tensors is refused with both shapes."""
    image = TinyModel().gguf()
    image.metadata[key] //= 2
    with pytest.raises(ModelLoadError, match=r"has shape \[\d+.*\], expected \[\d+.*\]"):
        logits_of(image.write(tmp_path / "m.gguf"))


def test_three_dimensional_tensor(tmp_path: Path) -> None:
    """A matrix given as three dimensions of the right total size is refused."""
    image = TinyModel().gguf()
    name, tensor = image.tensors[0]
    image.tensors[0] = (name, GGUFTensor((2, 64, 64), 0, tensor.data))
    with pytest.raises(ModelLoadError, match=r"has shape \[2, 64, 64\]"):
        logits_of(image.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "blk.9.attn_q.weight"])
def test_tensor_that_nobody_uses(tmp_path: Path, name: str) -> None:
    """A bias, an expert router or a layer too many means a model that we would compute wrongly: refused."""
    image = TinyModel().gguf()
    image.add(name, np.zeros((64, 64), np.float32))
    with pytest.raises(ModelLoadError, match="has 1 tensors that llama does not use"):
        logits_of(image.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_hostile_rope_frequencies(tmp_path: Path, value: float) -> None:
    """Rotary divisors that are not finite and positive are refused."""
    image = TinyModel().gguf()
    image.add("rope_freqs.weight", np.full(8, value, np.float32))
    with pytest.raises(ModelLoadError, match="not finite and positive"):
        logits_of(image.write(tmp_path / "m.gguf"))


def test_positions_can_be_bounded(tmp_path: Path) -> None:
    """Rotary tables need not be larger than the context in use; a position beyond them is an error."""
    ops = ReferenceOps(64, 8)
    path = TinyModel().gguf().write(tmp_path / "m.gguf")
    harness = Harness(load_model(open_model_files(path), ops, max_positions=16), ops, [40])
    harness.step({0: PROMPT[:16]})
    with pytest.raises(ValueError, match="positions"):
        harness.step({0: [1]})


def test_files_are_unmapped_after_loading(tmp_path: Path) -> None:
    """Loading leaves no mapping of the weight file behind: its pages would count as ours."""
    path = TinyModel().gguf().write(tmp_path / "m.gguf")
    files = open_model_files(path)
    model = load_model(files, ReferenceOps(64, 8))
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert model.spec.vocab_size == 128


def test_sizes_that_a_backend_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a backend refuses a weight, the error is a ModelLoadError with the path, not a bare ValueError."""

    def refuse(*_: object) -> None:
        raise ValueError("rows of 48 bytes")

    monkeypatch.setattr(ReferenceOps, "load_norm", refuse)
    with pytest.raises(ModelLoadError, match=r"m\.gguf: rows of 48 bytes"):
        logits_of(TinyModel().gguf().write(tmp_path / "m.gguf"))
