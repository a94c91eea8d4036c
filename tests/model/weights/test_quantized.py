"""Quantising at load: which tensors become what, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model, open_weights
from chairlift.model.weights.quantized import QuantizedWeights, integer_notices, quantization_notices
from chairlift.model.weights.source import WeightSource
from chairlift.ops.interface import HostTensor, TensorType
from chairlift.ops.quantize import quantize
from chairlift.ops.reference import ReferenceOps
from model.harness import Harness
from model.tiny_models import TinyModel

PROMPT = [5, 17, 99, 3, 3, 64, 127, 0, 42, 8]
FLOATS = ("F32", "F16", "BF16")


def opened(path: Path) -> WeightSource:
    return open_weights(open_model_files(path))


@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize(("quantization", "layers"), [("q8", TensorType.Q8_0), ("q4", TensorType.Q4_1)])
@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_what_each_tensor_becomes(
    tmp_path: Path, type_name: str, quantization: str, layers: TensorType, kind: str
) -> None:
    """Matrices are quantised, embedding and head to 8 bits always, norms not at all; bytes are the quantiser's."""
    model = TinyModel(type_name=type_name, tied=False)
    path = model.gguf().write(tmp_path / "m.gguf") if kind == "gguf" else model.write_folder(tmp_path / "hf")
    source = QuantizedWeights(opened(path), quantization, quantize)
    assert set(source.names()) == set(model.weights)
    for name, original in model.weights.items():
        tensor = source.get(name, original.shape)
        if len(original.shape) == 1:
            assert tensor.type is original.type
        else:
            expected = TensorType.Q8_0 if name in ("model.embed_tokens.weight", "lm_head.weight") else layers
            assert tensor.type is expected
            assert np.array_equal(tensor.data, quantize(original, expected).data)
            assert source.info(name).type_name == type_name


@pytest.mark.parametrize("type_name", FLOATS)
def test_gguf_and_folder_agree(tmp_path: Path, type_name: str) -> None:
    """The same float weights from a GGUF and from a folder are the same model when quantised."""
    model = TinyModel(type_name=type_name)
    paths = model.gguf().write(tmp_path / "m.gguf"), model.write_folder(tmp_path / "hf")
    from_gguf, from_folder, exact = (
        logits_of(path, quantization)
        for path, quantization in (*zip(paths, ("q4", "q4"), strict=True), (paths[0], None))
    )
    assert np.array_equal(from_gguf, from_folder)
    assert 0.0 < np.abs(from_gguf - exact).mean() < 0.5 * exact.std()


def logits_of(path: Path, quantization: str | None) -> np.ndarray:
    ops = ReferenceOps(16, 1)
    model = load_model(open_model_files(path), ops, quantization=quantization)
    return Harness(model, ops, [len(PROMPT)]).prefill(0, PROMPT, 16)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0"])
def test_quantised_files_are_left_alone(tmp_path: Path, type_name: str) -> None:
    """A tensor that has blocks already keeps its bytes, and the user hears that the flag does nothing."""
    model = TinyModel(type_name=type_name)
    source = opened(model.gguf().write(tmp_path / "m.gguf"))
    quantized = QuantizedWeights(source, "q4", quantize)
    for name, original in model.weights.items():
        assert np.array_equal(quantized.get(name, original.shape).data, original.data)
    (notice,) = quantization_notices(source, "q4")
    assert "--quantization q4 changes nothing" in notice
    assert "m.gguf" in notice


def test_rows_of_no_whole_blocks_stay(tmp_path: Path) -> None:
    """A matrix whose rows are no multiple of 32 stays as it is; the notice says how many and which."""
    model = TinyModel(intermediate_size=80)  # rows of mlp.down_proj
    source = opened(model.write_folder(tmp_path))
    quantized = QuantizedWeights(source, "q8", quantize)
    kept = [name for name in quantized.names() if quantized.target(name) is None and "norm" not in name]
    assert kept == [f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)]
    assert all(quantized.get(name, (64, 80)).type is TensorType.F32 for name in kept)
    (notice,) = quantization_notices(source, "q8")
    assert "2 of 15 matrices stay" in notice
    assert "model.layers.0.mlp.down_proj.weight, 80 values" in notice
    assert np.isfinite(logits_of(tmp_path, "q8")).all()


def test_nothing_to_say(tmp_path: Path) -> None:
    """Where everything is quantised there is no notice."""
    assert quantization_notices(opened(TinyModel().write_folder(tmp_path)), "q4") == []


@pytest.mark.parametrize("type_name", FLOATS)
def test_int8_without_integer_weights_says_so(tmp_path: Path, type_name: str) -> None:
    """Float weights don't meet 8-bit activations: the notice says that, and which flag would make them."""
    source = opened(TinyModel(type_name=type_name).write_folder(tmp_path))
    (notice,) = integer_notices(source, None)
    assert "--compute-dtype int8 changes nothing" in notice
    assert "--quantization q8|q4" in notice
    assert integer_notices(source, "q4") == []


def test_int8_for_a_part_says_how_many(tmp_path: Path) -> None:
    """Rows that cannot be quantised are computed in f32 and counted; a table that is only looked up is not."""
    source = opened(TinyModel(intermediate_size=80, tied=False).write_folder(tmp_path))
    (notice,) = integer_notices(source, "q8")
    assert "13 of 15 matrices are computed in int8" in notice


def test_one_tensor_at_a_time(tmp_path: Path) -> None:
    """Nothing is quantised before a model asks for it, so a model is never in memory twice."""
    calls: list[str] = []

    def count(tensor: HostTensor, kind: TensorType) -> HostTensor:
        calls.append(tensor.name)
        return quantize(tensor, kind)

    source = QuantizedWeights(opened(TinyModel().write_folder(tmp_path)), "q4", count)
    assert calls == []
    source.get("model.layers.1.mlp.up_proj.weight", (96, 64))
    assert calls == ["model.layers.1.mlp.up_proj.weight"]


def test_values_that_cannot_be_quantised(tmp_path: Path) -> None:
    """A weight that is not finite is an error that names the file, the tensor and the row."""
    model = TinyModel()
    broken = model.weights["model.layers.0.mlp.up_proj.weight"].data
    broken.view("<f4")[7, 3] = np.nan
    path = model.write_folder(tmp_path / "hf")
    with pytest.raises(
        ModelLoadError, match=r"hf: tensor 'model\.layers\.0\.mlp\.up_proj\.weight' .* row 7 has"
    ):
        logits_of(path, "q8")
