"""From the command line's model argument to a path that exists, fetching the default model when none was named."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cli import environment
from chairlift.config import EngineConfig
from chairlift.factory import resolve_model as _resolve


def resolve_model(config: EngineConfig) -> EngineConfig:
    """The same config with `model.model` set to an existing path. Raises ModelLoadError when there is none."""
    model = config.model
    if model.download_dir is None:
        model = replace(model, download_dir=environment.cache_dir())
    return _resolve(replace(config, model=model), index_url=environment.index_url())
