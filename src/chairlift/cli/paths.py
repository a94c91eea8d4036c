"""Files that a command will write, checked before it does any work."""

from __future__ import annotations

import os
from pathlib import Path

from chairlift.errors import ConfigError


def check_writable(flag: str, target: str) -> None:
    """Raise ConfigError, naming the flag, when `target` cannot be a file of ours. Touches nothing."""
    path = Path(target)
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: it is a folder; give the file to write")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{flag} {path}: no permission to write there")
