"""Opening a model: what cannot work is refused at the start, and what a person should know is said once."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from chairlift import factory
from chairlift.config import EngineConfig
from chairlift.errors import ConfigError, ModelLoadError
from tiny import write_tiny_model


def config(model: Path, **flags: Any) -> EngineConfig:
    flags = {"max_model_len": 64, "num_kv_blocks": 8, "threads": 1, **flags}
    return EngineConfig.from_flags(model=model, **flags)


def notices(caplog: pytest.LogCaptureFixture, settings: EngineConfig) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="chairlift"):
        factory.open_engine(settings).close()
    return [record.getMessage() for record in caplog.records if record.name == "chairlift"]


def test_the_reference_backend_says_that_it_is_slow(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, although the person asked for it by name."""
    (line,) = notices(caplog, config(tiny_model, backend="reference"))
    assert "very slow and outside the same-bits promise" in line


def test_missing_kernels_are_one_line(
    tiny_model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the native module `auto` falls back, and says why and what that means."""
    monkeypatch.setitem(sys.modules, "chairlift.ops.cpu", None)
    (line,) = notices(caplog, config(tiny_model))
    assert "no native kernels" in line
    assert "very slow" in line


def test_an_instruction_set_for_the_reference_is_refused(tiny_model: Path) -> None:
    """A flag that would have no effect is an error that names it."""
    with pytest.raises(ConfigError, match=r"--isa generic .* reference backend has none"):
        factory.build_engine(config(tiny_model, backend="reference", isa="generic"))


def test_int8_without_effect_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Asking for 8-bit activations where no weights take them is said, with the flag that helps."""
    path = write_tiny_model(tmp_path / "f32.gguf", type_name="F32")
    (line,) = notices(caplog, config(path, compute_dtype="int8"))
    assert "--compute-dtype int8 changes nothing" in line
    assert "--quantization q8|q4" in line


def test_a_clamped_context_is_one_line(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A context cut to the pool is said with both numbers."""
    (line,) = notices(caplog, config(tiny_model, max_model_len=None, backend="auto"))
    assert "clamped from 2048 to 128" in line


@pytest.mark.parametrize(
    "flags",
    [
        {"num_kv_blocks": 2_000_000_000, "block_size": 65536},
        {"num_kv_blocks": None, "kv_cache_memory": "9999999t", "block_size": 65536},
    ],
)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_memory_that_is_not_there_names_the_knobs(
    tiny_model: Path, backend: str, flags: dict[str, Any]
) -> None:
    """A pool that no machine holds is a wrong setting, not a traceback."""
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        factory.build_engine(config(tiny_model, backend=backend, **flags))


def test_a_tokenizer_of_another_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """More ids than the model has embeddings cannot be its tokenizer: refused before anything is served."""
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(models.BPE({f"w{i}": i for i in range(600)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
    with pytest.raises(ModelLoadError, match=r"--tokenizer .* has 600 ids, .* 512"):
        factory.open_front(config(tiny_model, tokenizer=path))
