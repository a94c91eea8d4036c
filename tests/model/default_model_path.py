"""Where tests find the default model: the user's cache, or fetched into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.cli.environment import cache_dir
from chairlift.errors import ModelLoadError
from chairlift.model.default_model import fetch_default_model


def default_model_path() -> Path:
    """The GGUF file; skips the test, saying why, when it is not cached and there is no network."""
    try:
        return fetch_default_model(Path(cache_dir()))
    except ModelLoadError as error:
        pytest.skip(f"the default model is not to be had: {error}")
