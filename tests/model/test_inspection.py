"""What `chairlift inspect` counts: errors of quantised tensors, one by one and together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chairlift.model import inspection
from chairlift.model.files import open_model_files
from chairlift.model.inspection import Loss, compare, inspect_tensors
from chairlift.model.loader import open_weights
from chairlift.ops.dequantize import dequantize
from chairlift.ops.interface import TensorType
from chairlift.ops.quantize import quantize
from model.tiny_models import TinyModel


def test_error_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative RMS and largest error are what their definitions say, however many rows are widened at once."""
    original = TinyModel().weights["model.embed_tokens.weight"]
    rounded = quantize(original, TensorType.Q4_1)
    exact = dequantize(original).astype(float)
    off = exact - dequantize(rounded)
    for at_once in (2**22, 640, 1):
        monkeypatch.setattr(inspection, "_VALUES_AT_ONCE", at_once)
        loss = compare(original, rounded)
        assert loss.largest_error == np.abs(off).max()
        assert loss.relative_rms_error == pytest.approx(np.sqrt((off**2).mean() / (exact**2).mean()))
        assert loss.bits_per_weight == 5.0  # 4, and two f16 for 32 weights
        assert loss.num_bytes == rounded.data.nbytes


def test_total_is_one_big_tensor() -> None:
    """Losses of parts add up to the loss of the whole."""
    original = TinyModel().weights["model.embed_tokens.weight"]
    rounded = quantize(original, TensorType.Q8_0)
    parts = [
        compare(*(type(t)(t.name, t.type, (64, 64), t.data[rows]) for t in (original, rounded)))
        for rows in (slice(0, 64), slice(64, 128))
    ]
    whole, total = compare(original, rounded), Loss.total(parts)
    assert total.relative_rms_error == pytest.approx(whole.relative_rms_error)
    assert (total.type_name, total.num_values, total.num_bytes, total.largest_error) == (
        whole.type_name,
        whole.num_values,
        whole.num_bytes,
        whole.largest_error,
    )


def test_every_tensor_is_listed(tmp_path: Path) -> None:
    """Each tensor appears once with the file's own name; only matrices have a loss, and only when asked for."""
    model = TinyModel()
    source = open_weights(open_model_files(model.gguf().write(tmp_path / "m.gguf")))
    plain = list(inspect_tensors(source))
    assert len(plain) == len(model.weights)
    assert "token_embd.weight" in {info.name for info, _ in plain}
    assert all(loss is None for _, loss in plain)
    quantised = list(inspect_tensors(source, "q4", quantize))
    assert [info for info, _ in quantised] == [info for info, _ in plain]
    assert all((loss is not None) == (len(info.shape) == 2) for info, loss in quantised)


def test_zeros_lose_nothing() -> None:
    """A tensor of zeros has no relative error to divide by."""
    original = TinyModel().weights["model.embed_tokens.weight"]
    zeros = type(original)("w", original.type, original.shape, np.zeros_like(original.data))
    assert compare(zeros, quantize(zeros, TensorType.Q4_1)).relative_rms_error == 0.0
