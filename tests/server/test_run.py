from __future__ import annotations

import os
import signal
import socket

import pytest

from chairlift.engine.frontend import AsyncFrontend
from chairlift.errors import ConfigError, ModelLoadError
from chairlift.server.app import create_app
from chairlift.server.run import listen, run_server, url_of
from fakes import ByteTokenizer, FakeAsyncClient, build
from server.serving import raw_request, serving, wait_until


def test_port_zero_is_a_free_one_and_is_told() -> None:
    """The URL names the real port."""
    with listen("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.getsockname()[1] != 0


def test_connections_are_not_delayed() -> None:
    """Small events leave at once: asyncio sets TCP_NODELAY on what calls itself TCP."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_an_address_in_use_is_a_config_error() -> None:
    """The message names the flags."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--host 127.0.0.1 --port {port}"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="--port is 99999"):
        listen("127.0.0.1", 99999)


def test_an_engine_that_cannot_start_is_its_own_error() -> None:
    """The error of the engine is what the caller gets, not a message of the web server."""

    def fail() -> None:
        raise ModelLoadError("no such model")

    tokenizer = ByteTokenizer()
    frontend = AsyncFrontend(FakeAsyncClient(fail), tokenizer)
    app = create_app(frontend, tokenizer, None, served_model_names=["x"], version="1")
    with pytest.raises(ModelLoadError, match="no such model"):
        run_server(app, host="127.0.0.1", port=0)


def test_a_model_needs_a_name() -> None:
    """No name is a mistake of the caller."""
    frontend = AsyncFrontend(FakeAsyncClient(lambda: build().engine), ByteTokenizer())
    with pytest.raises(ValueError, match="at least one name"):
        create_app(frontend, ByteTokenizer(), None, served_model_names=[], version="1")


def test_shutdown_closes_the_engine() -> None:
    """When the server stops, so does the engine, also with a request in flight."""
    with serving({"Hi": "Hello"}) as served:
        assert served.complete("Hi")["choices"][0]["text"] == "Hello"
        client = served.client
    assert client.closed


def test_the_server_ends_when_the_engine_is_gone_for_good() -> None:
    """B61: it exits, with a code other than 0, so that a supervisor can start it anew."""
    tokenizer = ByteTokenizer()
    client = FakeAsyncClient(lambda: build().engine)
    frontend = AsyncFrontend(client, tokenizer)
    app = create_app(frontend, tokenizer, None, served_model_names=["x"], version="1")
    urls: list[str] = []

    def die(url: str) -> None:
        urls.append(url)
        frontend._die("test")

    assert run_server(app, host="127.0.0.1", port=0, log_level="error", on_ready=die) == 1
    assert urls
    assert client.closed
    wait_until(lambda: frontend.state == "dead")


def test_a_request_in_flight_at_shutdown_gets_an_answer() -> None:
    """A stream that takes too long after the signal to stop ends with an error event, a document with a 503."""
    with serving(paused=True, keepalive_s=0.05) as served:
        body = {"prompt": "x", "max_tokens": 9}
        stream = raw_request(served.address, "/v1/completions", {**body, "stream": True})
        document = raw_request(served.address, "/v1/completions", body)
        wait_until(lambda: served.frontend.num_unfinished == 2)
    with stream, document:
        assert b"shutting down" in read_to_end(stream)
        assert read_to_end(document).startswith(b"HTTP/1.1 503")


def test_signals_stop_the_server_with_code_0() -> None:
    """SIGTERM, as a supervisor sends it, is an orderly end."""
    tokenizer = ByteTokenizer()
    client = FakeAsyncClient(lambda: build().engine)
    app = create_app(AsyncFrontend(client, tokenizer), tokenizer, None, served_model_names=["x"], version="1")

    def stop(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    assert run_server(app, host="127.0.0.1", port=0, log_level="error", on_ready=stop) == 0
    assert client.closed
    assert signal.getsignal(signal.SIGTERM) == before


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(65536):
        data += part
    return data
