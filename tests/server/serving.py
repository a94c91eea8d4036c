"""A server on a real socket, in a thread, with a scripted engine behind it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from chairlift.engine.frontend import AsyncFrontend
from chairlift.server.app import create_app
from chairlift.server.run import listen, serve, url_of
from chairlift.tokenizer.base import Tokenizer
from chairlift.tokenizer.chat_template import ChatTemplate
from fakes import ByteTokenizer, FakeAsyncClient, Script, ScriptedRunner, build

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_prompt(*turns: tuple[str, str]) -> str:
    """What CHATML makes of (role, content) pairs."""
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + "<|im_start|>assistant\n"


@dataclass
class Served:
    """A running server and everything behind it."""

    url: str
    frontend: AsyncFrontend
    client: FakeAsyncClient
    runner: ScriptedRunner
    loop: asyncio.AbstractEventLoop
    http: httpx.Client
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="key", max_retries=0, timeout=30, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The answer of /v1/completions, which must be a 200."""
        response = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert response.status_code == 200, response.text
        document: dict[str, Any] = response.json()
        return document

    def chat(self, messages: Any, **fields: Any) -> dict[str, Any]:
        """The answer of /v1/chat/completions, which must be a 200; a text is one user message."""
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        response = self.post("/v1/chat/completions", {"messages": messages, **fields})
        assert response.status_code == 200, response.text
        document: dict[str, Any] = response.json()
        return document

    def refusal(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of a request that must be refused."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        return error

    def stream(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Chunks of a stream, which must end with [DONE]."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_events(response.text)

    def assert_idle(self) -> None:
        """Nothing runs, nothing waits, no block is held; given some time to get there."""
        wait_until(lambda: self.frontend.num_unfinished == 0)
        engine = self.client.engine
        assert engine is not None
        wait_until(lambda: not engine.has_unfinished())

    def call_in_loop(self, function: Callable[[], Any]) -> Any:
        """Run something in the server's event loop."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)


@contextmanager
def serving(
    scripts: Mapping[str | tuple[int, ...], Script] | None = None,
    *,
    runner: ScriptedRunner | None = None,
    tokenizer: Tokenizer | None = None,
    template: str | None = CHATML,
    paused: bool = False,
    names: tuple[str, ...] = ("scripted",),
    engine: Mapping[str, Any] | None = None,
    frontend_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Served]:
    """Serve until the block ends; `options` are create_app's."""
    runner = runner or ScriptedRunner(scripts)
    tokenizer = tokenizer or ByteTokenizer()
    client = FakeAsyncClient(lambda: build(runner, **(engine or {})).engine, paused=paused)
    frontend = AsyncFrontend(client, tokenizer, **(frontend_options or {}))
    chat_template = None if template is None else ChatTemplate(template)
    app = create_app(frontend, tokenizer, chat_template, served_model_names=names, version="1.2.3", **options)
    listener = listen("127.0.0.1", 0)
    ready, stop = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def life() -> None:
        loops.append(asyncio.get_running_loop())
        server = asyncio.ensure_future(serve(app, listener, "error", 1, lambda _: ready.set()))
        while not stop.is_set() and not server.done():
            await asyncio.sleep(0.01)
        app.state.server.should_exit = True
        await server

    thread = threading.Thread(target=asyncio.run, args=(life(),), name="server")
    thread.start()
    try:
        assert ready.wait(10), "the server did not get ready"
        with httpx.Client(base_url=url_of(listener), timeout=30) as http:
            yield Served(url_of(listener), frontend, client, runner, loops[0], http)
    finally:
        stop.set()
        thread.join(60)
        listener.close()
    assert not thread.is_alive()


def parse_events(text: str) -> list[dict[str, Any]]:
    """Documents of an event stream; comments are dropped, [DONE] must be there once and last."""
    parts = [part for part in text.split("\n\n") if part and not part.startswith(":")]
    assert all(part.startswith("data: ") for part in parts), text
    assert parts[-1] == "data: [DONE]"
    assert parts.count("data: [DONE]") == 1
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll; fails when it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def raw_request(address: tuple[str, int], path: str, body: Mapping[str, Any]) -> socket.socket:
    """A socket on which a POST has been sent, and nothing read."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    sock = socket.create_connection(address, timeout=10)
    sock.sendall(head.encode() + data)
    return sock
