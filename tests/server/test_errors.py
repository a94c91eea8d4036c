from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from chairlift.errors import EngineDeadError, OverloadedError
from chairlift.server.error_handlers import error_document
from server.serving import Served, raw_request, serving

C, H = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", C, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/models/", 405),
        ("PUT", "/health", 405),
    ],
)
def test_routes_and_methods(server: Served, method: str, path: str, status: int) -> None:
    """Unknown routes and methods have OpenAI's error shape too."""
    response = server.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", [C, H, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"[]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5000],
)
def test_bodies_that_are_no_json_object(server: Served, path: str, content: bytes) -> None:
    """A 400 in OpenAI's shape, whatever is sent."""
    response = server.http.post(path, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_the_content_type_does_not_matter(server: Served) -> None:
    """curl -d without a header works."""
    response = server.http.post(
        C, content=b'{"prompt": "Hi"}', headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert response.json()["choices"][0]["text"] == "Hello there!"


def test_an_unknown_model_is_a_404(server: Served) -> None:
    """OpenAI's status and code; the names that are served are in the message."""
    error = server.refusal(C, {"prompt": "Hi", "model": "gpt-9"}, 404)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert "scripted" in error["message"]


def test_what_is_quoted_may_be_no_valid_text(server: Served) -> None:
    """An error that quotes half a surrogate pair is still JSON."""
    response = server.http.post(C, content=b'{"prompt": "Hi", "n": "\\u00e9"}')
    assert response.status_code == 400
    assert "\\xe9" in response.json()["error"]["message"]


def test_large_bodies_are_refused() -> None:
    """A 413, by the announced length at once, or by what has come."""
    with serving({"Hi": "Hello"}, max_body_bytes=1000) as served:
        announced = served.post(C, {"prompt": "x" * 2000})
        assert announced.status_code == 413
        assert "1000 bytes" in announced.json()["error"]["message"]

        def parts() -> object:
            for _ in range(20):
                yield b"x" * 100

        assert served.http.post(C, content=parts()).status_code == 413
        assert served.complete("Hi")["choices"][0]["text"] == "Hello"


def test_api_keys() -> None:
    """Every route but the probes needs one of the keys."""
    with serving({"Hi": "Hello"}, api_keys=["first", "secönd"]) as served:
        for path in ("/health", "/version", "/metrics"):
            assert served.http.get(path).status_code == 200
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"}):
            response = served.http.get("/v1/models", headers=header)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["x-request-id"]
            assert served.http.post(C, json={"prompt": "Hi"}, headers=header).status_code == 401
        for key in ("first", "secönd"):
            header = {b"authorization": f"Bearer {key}".encode()}
            assert served.http.get("/v1/models", headers=header).status_code == 200
        assert served.http.get("/v1/models", headers={"authorization": "bearer first"}).status_code == 200


def test_request_ids(server: Served) -> None:
    """X-Request-Id is echoed and is part of the answer's id; a bad one is replaced."""
    response = server.post(C, {"prompt": "Hi"}, headers={"x-request-id": "trip-7"})
    assert response.headers["x-request-id"] == "trip-7"
    assert response.json()["id"] == "cmpl-trip-7"
    refused = server.post(C, {"prompt": ""}, headers={"x-request-id": "trip-8"})
    assert refused.headers["x-request-id"] == "trip-8"
    for bad in ("x" * 200, "a b", ""):
        other = server.http.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert other != bad
        assert len(other) == 32


def test_two_requests_may_have_one_id(server: Served) -> None:
    """A client that repeats its id gets both answers."""
    socks = []
    for _ in range(2):
        data = json.dumps({"prompt": "endless", "max_tokens": 100}).encode()
        sock = socket.create_connection(server.address, timeout=10)
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: twin\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        socks.append(sock)
    for sock in socks:
        with sock, sock.makefile("rb") as file:
            assert b'"completion_tokens":100' in file.read()


def test_a_full_queue_is_a_429_with_retry_after() -> None:
    """B64: what cannot be queued is refused at once, with a hint when to come again."""
    with serving(paused=True, engine={"max_num_seqs": 1, "max_num_waiting": 1}) as served:
        waiting = [raw_request(served.address, C, {"prompt": "x"}) for _ in range(2)]
        try:
            while served.frontend.num_unfinished < 2:
                pass
            response = served.post(C, {"prompt": "x"})
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert "--max-num-waiting 1" in response.json()["error"]["message"]
        finally:
            for sock in waiting:
                sock.close()
        served.call_in_loop(served.client.resume)
        served.assert_idle()


def test_internal_errors_say_nothing_of_the_inside(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug is a 500 in OpenAI's shape, with the details in the log only."""
    monkeypatch.setattr(server.frontend, "submit", lambda *a, **k: 1 / 0)
    for stream in (False, True):
        response = server.post(C, {"prompt": "Hi", "stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "ZeroDivision" not in response.text
        assert response.headers["x-request-id"]
    assert "ZeroDivisionError" in caplog.text


def test_a_dead_engine_is_a_503() -> None:
    """B61: health tells the truth, and requests are refused instead of hanging."""
    with serving({"Hi": "Hello"}) as served:
        asyncio.run_coroutine_threadsafe(served.frontend.close(), served.loop).result(10)
        assert served.http.get("/health").status_code == 503
        for stream in (False, True):
            response = served.post(C, {"prompt": "Hi", "stream": stream})
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "engine_dead_error"
            assert response.headers["retry-after"]


def test_documents_of_errors() -> None:
    """The class of an error decides the status."""
    assert error_document(OverloadedError("full", retry_after=0.2))[0] == 429
    assert error_document(OverloadedError("full", retry_after=0.2))[2] == {"retry-after": "1"}
    assert error_document(EngineDeadError("gone"))[0] == 503


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": ["x"] * 500_000},
        {"stop": [5] * 500_000},
        {"logit_bias": {str(i): "x" for i in range(300_000)}},
        {f"field{i}": 1 for i in range(300_000)},
        {"prompt": [[0.5]] * 500_000},
    ],
)
def test_large_nonsense_is_refused_quickly(server: Served, fields: dict) -> None:
    """B28: a body full of mistakes costs one complaint, not one per mistake."""
    content = json.dumps({"prompt": "Hi", **fields}).encode()
    start = time.process_time()
    response = server.http.post(C, content=content)
    assert response.status_code == 400
    assert len(response.content) < 1000
    assert time.process_time() - start < 3  # seconds of one core, client included; a fraction of one
