"""Fixtures that many tests share: the tiny random model, and the default model where it can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.default_model_path import default_model_path
from tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a tiny random GGUF model with a tokenizer and a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Path of the default model, fetched into the user's cache once; skips where it is not to be had."""
    return default_model_path()
