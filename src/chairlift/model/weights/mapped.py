"""Opening a file for reading as memory, and saying where in it a tensor lies. No numpy: the front end reads headers."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from chairlift.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in its file; already checked to lie inside it."""

    name: str
    type_name: str
    shape: tuple[int, ...]  # outermost first
    start: int  # byte offset from the beginning of the file
    num_bytes: int


def map_file(path: Path, min_bytes: int = 1) -> mmap.mmap:
    """Map a whole file read-only; the caller (or the last view of it) unmaps it.

    Raises:
        ModelLoadError: the file cannot be read, or is shorter than `min_bytes`.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < max(min_bytes, 1):  # an empty file cannot be mapped at all
                raise ModelLoadError(f"{path}: the header needs bytes up to {min_bytes}, file has {size}")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error
