"""`chairlift serve` as a user starts it: a process of its own, on a real socket, with a real engine child.

A case talks to it as a client does (HTTP, sockets, signals) and looks at it as an operator does (/metrics, the step
log, the process table); nothing here reaches into the server's memory.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROBE = {"prompt": "The three primary colours are", "max_tokens": 6, "temperature": 0, "logprobs": 1}
CYCLE = (504, 2365, 6354, 16438, 845)  # plain tokens of the default model's vocabulary

_URL = re.compile(r"serves .* on (http://[^ ]+) \(ready")


def ids(n: int, shift: int = 0) -> list[int]:
    """A prompt of exactly `n` tokens; another `shift` makes it another prompt from the first token on."""
    return [CYCLE[(shift + i) % len(CYCLE)] for i in range(n)]


def mixed(n: int, salt: int) -> list[int]:
    """A prompt of exactly `n` tokens that shares no block with those of other salts, nor within itself."""
    return [1000 + (7919 * salt + 104729 * i * (i + salt + 1)) % 40000 for i in range(n)]


def wait_for(what: str, probe: Callable[[], T], seconds: float = 30.0) -> T:
    """The first true value of `probe`; fails, naming what was waited for, when there is none in time."""
    end = time.monotonic() + seconds
    while not (value := probe()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return value


def bits(choice: Mapping[str, Any]) -> tuple[Any, ...]:
    """Everything of a text completion's choice that must be equal, exactly (each id has a spelling of its own)."""
    logprobs = choice["logprobs"]
    return (
        choice["text"],
        choice["finish_reason"],
        tuple(logprobs["tokens"]),
        tuple(logprobs["token_logprobs"]),
        tuple(tuple(sorted(top.items())) if top else None for top in logprobs["top_logprobs"]),
    )


class Service:
    """A running server. `flags` are those of `chairlift serve`."""

    def __init__(self, model: Path, flags: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True)
        self.step_log = folder / "steps.jsonl"
        self._stderr = folder / "stderr.txt"
        self.process = launch([str(model), "--step-log", str(self.step_log), *flags], self._stderr)
        try:
            self.url = self._wait_until_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx.Client(base_url=self.url, timeout=110, limits=limits)
        self.probe = bits(self.complete(**PROBE)["choices"][0])

    def _wait_until_ready(self) -> str:
        def find() -> str | None:
            code = self.process.poll()
            assert code is None, f"exit code {code}: {self.log()}"
            match = _URL.search(self.log())
            return match.group(1) if match else None

        return wait_for("the server to get ready", find, 60) or ""

    def close(self) -> None:
        """Stop it as Ctrl-C does; it must end well, and its log must hold no traceback."""
        self.http.close()
        stop(self.process)
        assert self.process.returncode in (0, -signal.SIGINT), self.log()
        self.assert_clean_log()

    def log(self) -> str:
        """What it has written for its operator."""
        return self._stderr.read_text()

    def assert_clean_log(self) -> None:
        """Nothing unexpected happened inside."""
        assert "Traceback" not in self.log(), self.log()
        assert "internal error" not in self.log(), self.log()

    # -- as a client -----------------------------------------------------------------------------------------
    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def openai(self) -> openai.OpenAI:
        """The official client."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=110)

    def post(self, path: str, body: Any, request_id: str | None = None) -> httpx.Response:
        """A POST, whatever comes of it. JSON's NaN and Infinity may be in the body."""
        headers = {"content-type": "application/json"} | ({"x-request-id": request_id} if request_id else {})
        return self.http.post(path, content=json.dumps(body), headers=headers)

    def ask(self, path: str, body: Any, request_id: str | None = None) -> dict[str, Any]:
        """The answer, which must be a 200."""
        response = self.post(path, body, request_id)
        assert response.status_code == 200, (response.status_code, response.text)
        document: dict[str, Any] = response.json()
        return document

    def complete(self, prompt: Any, *, request_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """A text completion's document."""
        return self.ask(COMPLETIONS, {"prompt": prompt, **fields}, request_id)

    def text(self, prompt: Any, **fields: Any) -> str:
        """The text of a greedy completion."""
        text: str = self.complete(prompt, temperature=0, **fields)["choices"][0]["text"]
        return text

    def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """A chat completion's document; a text is one user message."""
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self.ask(CHAT, {"messages": messages, **fields})

    def refusal(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of a request that must be refused, in OpenAI's shape."""
        response = self.post(path, body)
        assert response.status_code == status, (body, response.status_code, response.text)
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def stream(self, path: str, body: Mapping[str, Any], request_id: str | None = None) -> Iterator[Any]:
        """Chunks as they come; the stream must be a 200 that ends with exactly one [DONE]."""
        headers = {"x-request-id": request_id} if request_id else {}
        with self.http.stream("POST", path, json={**body, "stream": True}, headers=headers) as response:
            assert response.status_code == 200, response.read()
            lines = (line for line in response.iter_lines() if line and not line.startswith(":"))
            for line in lines:
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    assert list(lines) == []
                    return
                yield json.loads(data)
            raise AssertionError("the stream ended without [DONE]")

    def streamed(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A streamed text completion's first choice, joined from its chunks."""
        return joined(self.stream(COMPLETIONS, {"prompt": prompt, **fields}))

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Results of calls that are made at the same time, in their order."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: call(), calls))

    @contextmanager
    def sent(self, path: str, body: Mapping[str, Any], request_id: str = "") -> Iterator[socket.socket]:
        """A socket on which a request was sent; leaving the block hangs up, whatever has been answered."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {request_id}\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection(self.address, timeout=60) as sock:
            sock.sendall(head.encode() + data)
            yield sock

    # -- as an operator --------------------------------------------------------------------------------------
    @property
    def health(self) -> int:
        """Status of /health."""
        return self.http.get("/health").status_code

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name; the finished requests as finished:REASON."""
        values = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                name = sample.name.removeprefix("chairlift:")
                reason = sample.labels.get("finished_reason")
                if name == "request_success_total":
                    values[f"finished:{reason}"] = sample.value
                elif "le" not in sample.labels:
                    values[name] = sample.value
        return values

    def is_idle(self) -> bool:
        """Nothing runs, nothing waits, no block is held."""
        gauges = self.metrics()
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(gauges[name] == 0 for name in names)

    def assert_idle(self, seconds: float = 10.0) -> None:
        """It gets idle by itself, without a new request."""
        wait_for("the server to be idle", self.is_idle, seconds)

    def assert_alive(self) -> None:
        """Healthy, idle, and a fixed greedy request has the answer that it had when the server was new."""
        self.assert_idle()
        assert self.health == 200
        assert bits(self.complete(**PROBE)["choices"][0]) == self.probe

    def steps(self) -> list[dict[str, Any]]:
        """Records of all steps so far."""
        lines = self.step_log.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def shares(self, request_id: str) -> dict[int, int]:
        """By index in `steps`: how many tokens a request (one choice of it) got."""
        found = {}
        for index, step in enumerate(self.steps()):
            for name, tokens, *_ in step["rows"]:
                if name.removeprefix("cmpl-").removeprefix("chat") == request_id:
                    found[index] = tokens
        return found

    @property
    def engine_pid(self) -> int | None:
        """The server's child process, while there is one."""
        return next(iter(children_of(self.process.pid)), None)

    def rss(self) -> int:
        """Bytes that the server process (without its engine) holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024  # type: ignore[union-attr]


def joined(chunks: Iterator[Any]) -> dict[str, Any]:
    """One choice from the chunks of a text completion with one."""
    text, reason, logprobs = "", None, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] == 0
            assert reason is None
            text, reason = text + choice["text"], choice["finish_reason"]
            if choice["logprobs"] is not None:
                piece = choice["logprobs"]
                logprobs = piece if logprobs is None else {k: logprobs[k] + piece[k] for k in piece}
    assert reason is not None
    return {"index": 0, "text": text, "finish_reason": reason, "logprobs": logprobs}


def answered(sock: socket.socket) -> tuple[int, Any]:
    """Status and document of the answer on a socket."""
    with closing(http.client.HTTPResponse(sock, method="POST")) as response:
        response.begin()
        return response.status, json.loads(response.read())


def read_until(sock: socket.socket, marker: bytes, times: int = 1) -> bytes:
    """What comes on a socket, up to the marker's n-th appearance."""
    data = b""
    while data.count(marker) < times:
        part = sock.recv(65536)
        assert part, data
        data += part
    return data


def launch(arguments: Sequence[str], stderr: Path) -> subprocess.Popen[bytes]:
    """Start `chairlift serve` on a free port (unless the arguments have one)."""
    port = [] if "--port" in arguments else ["--port", "0"]
    command = [sys.executable, "-m", "chairlift", "serve", *port, *arguments]
    with stderr.open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def stop(process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    """End a server as Ctrl-C does, or by force when that does not help."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(seconds)
    finally:
        process.kill()
        process.wait()


def children_of(pid: int) -> list[int]:
    """Process ids of the living children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(entry))
    return sorted(found)
