"""Fixtures that many tests share: the tiny random model, and the default model where it can be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.default_model import fetch_default_model
from tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a tiny random GGUF model with a tokenizer and a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Path of the default model, fetched into the user's cache once; skips where it is not to be had."""
    base = os.environ.get("CHAIRLIFT_CACHE")
    folder = (
        Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chairlift"
    )
    try:
        return fetch_default_model(folder)
    except ModelLoadError as error:
        pytest.skip(f"the default model cannot be had here: {error}")
