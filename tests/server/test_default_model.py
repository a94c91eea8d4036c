"""The default model behind the real server: `chairlift serve` in a process of its own, over a real socket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.serving import parse_events

pytestmark = pytest.mark.model
C, H = "/v1/completions", "/v1/chat/completions"
PROMPTS = ["The capital of France is", "def f():\n", "- a\n-", "1, 2,", "Once upon a time", "Q: 2+2?\nA:"]
ALPHABET = "Here is the English alphabet: ABC"


@pytest.fixture(scope="module")
def served(default_model: Path) -> Iterator[tuple[str, int]]:
    """(URL, process id)."""
    command = [sys.executable, "-m", "chairlift", "serve", str(default_model), "--port", "0"]
    command += ["--max-model-len", "2048", "--kv-cache-memory", "200MiB", "--log-level", "warning"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as process:
        try:
            yield _url_of(process), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
def http(served: tuple[str, int]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served[0], timeout=120) as client:
        yield client


@pytest.fixture
def serve_pid(served: tuple[str, int]) -> int:
    return served[1]


def _url_of(process: subprocess.Popen[str]) -> str:
    """Read what the command prints until it names its address."""
    seen = ""
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[0]
    raise AssertionError(f"no address in:\n{seen}")


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post(path, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def streamed_text(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[str, list[str], str]:
    """(text, deltas, finish reason) of a stream."""
    response = http.post(path, json={"temperature": 0, **body, "stream": True})
    assert response.status_code == 200, response.text
    choices = [chunk["choices"][0] for chunk in parse_events(response.text)]
    deltas = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    return "".join(deltas), deltas, choices[-1]["finish_reason"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_stream_and_document_agree(http: httpx.Client, prompt: str) -> None:
    """B25: joined deltas are the text, and so are the tokens of its logprobs; the first space is kept."""
    body = {"prompt": prompt, "max_tokens": 24}
    whole = post(http, C, {**body, "logprobs": 0})["choices"][0]
    text, deltas, reason = streamed_text(http, C, body)
    assert text == whole["text"]
    assert reason == whole["finish_reason"]
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]


def test_turn_ends_do_not_leak(http: httpx.Client) -> None:
    """B26: the marker ends the turn and is not in the content, stream or not, chat or text."""
    messages = [{"role": "user", "content": "Say hi"}]
    whole = post(http, H, {"messages": messages, "max_tokens": 200})["choices"][0]
    text, _, reason = streamed_text(http, H, {"messages": messages, "max_tokens": 200})
    assert whole["finish_reason"] == reason == "stop"
    assert "<|im_end|>" not in whole["message"]["content"]
    assert text == whole["message"]["content"]
    rendered = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
    )
    body = {"prompt": rendered, "stop": ["<|im_end|>"], "max_tokens": 200}
    spelled = post(http, C, body)["choices"][0]
    assert (spelled["text"], spelled["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("path", [C, H])
def test_a_stop_string_across_tokens(http: httpx.Client, path: str) -> None:
    """B20: a slice of the output that begins inside a token stops it there, on both endpoints."""
    prompt: dict[str, Any] = {"prompt": ALPHABET}
    if path == H:
        prompt = {"messages": [{"role": "user", "content": "Write the English alphabet."}]}
    body = {**prompt, "max_tokens": 32}
    full, _, _ = streamed_text(http, path, body)
    for start in (3, 5, 8):
        stop = full[start : start + 7]
        text, _, reason = streamed_text(http, path, {**body, "stop": [stop]})
        assert text == full[: full.index(stop)]
        assert reason == "stop"
        document = post(http, path, {**body, "stop": [stop]})
        choice = document["choices"][0]
        assert choice.get("text", choice.get("message", {}).get("content")) == text
        assert document["usage"]["completion_tokens"] < 32


def test_tiny_temperatures_are_greedy(http: httpx.Client) -> None:
    """B27: no temperature up to 1e-4 gives anything else."""
    body = {"prompt": "San Francisco is a", "max_tokens": 7, "seed": 1}
    greedy = post(http, C, body)["choices"][0]["text"]
    for temperature in (1e-12, 1e-8, 1e-6, 1e-5, 1e-4):
        assert post(http, C, {**body, "temperature": temperature})["choices"][0]["text"] == greedy


def test_bias_forces_and_bans(http: httpx.Client) -> None:
    """B34: +100 forces a token, -100 bans it."""
    forced = post(http, C, {"prompt": "Hi", "max_tokens": 4, "logit_bias": {"7042": 100}, "logprobs": 0})
    assert len(set(forced["choices"][0]["logprobs"]["tokens"])) == 1
    free = post(http, C, {"prompt": "The capital of France is", "max_tokens": 1})["choices"][0]["text"]
    banned_id = http.post("/tokenize", json={"prompt": free}).json()["tokens"][0]
    body = {"prompt": "The capital of France is", "max_tokens": 1, "logit_bias": {str(banned_id): -100}}
    assert post(http, C, body)["choices"][0]["text"] != free


def test_penalties(http: httpx.Client) -> None:
    """B31: presence and frequency leave the first token alone; repetition does not."""
    body = {"prompt": "Paris, Paris, Paris, Paris, Paris,", "max_tokens": 1}
    first = post(http, C, body)["choices"][0]["text"]
    assert first == " Paris"
    for field in ("presence_penalty", "frequency_penalty"):
        assert post(http, C, {**body, field: 2})["choices"][0]["text"] == first
    assert post(http, C, {**body, "repetition_penalty": 5})["choices"][0]["text"] != first


def test_prompt_logprobs_cold_and_warm(http: httpx.Client) -> None:
    """B11: 40 entries, the first null, the same bits when the cache is warm."""
    ids = ([504, 2365, 6354, 16438, 845] * 8)[:40]
    body = {"prompt": ids, "echo": True, "logprobs": 5, "max_tokens": 1}
    runs = [post(http, C, body)["choices"][0]["logprobs"] for _ in range(3)]
    assert len(runs[0]["token_logprobs"]) == 41
    assert runs[0]["token_logprobs"][0] is None
    assert runs[0] == runs[1] == runs[2]


def test_seeds(http: httpx.Client) -> None:
    """B30: choices differ, a seed reproduces them, greedy ones are equal."""
    body = {"prompt": "Write one sentence about the sea.", "temperature": 1.2, "max_tokens": 32, "n": 8}
    seeded = [[c["text"] for c in post(http, C, {**body, "seed": 5})["choices"]] for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert len(set(seeded[0])) >= 7
    assert [c["text"] for c in post(http, C, body)["choices"]] != seeded[0]
    greedy = post(http, C, {**body, "temperature": 0})["choices"]
    assert len({choice["text"] for choice in greedy}) == 1


def test_32_streams_at_once_give_what_each_gives_alone(http: httpx.Client) -> None:
    """P2 over HTTP: the official client, 32 streams together, equal to the text of each alone."""
    import asyncio

    bodies = [{"prompt": f"{PROMPTS[i % 6]} {i}", "max_tokens": 6 + i % 5, "seed": i} for i in range(32)]
    alone = [post(http, C, {**body, "temperature": 0.8})["choices"][0]["text"] for body in bodies]

    async def one(client: openai.AsyncOpenAI, body: dict[str, Any]) -> str:
        stream = await client.completions.create(model="", temperature=0.8, stream=True, **body)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def everyone() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client, body) for body in bodies))

    assert asyncio.run(everyone()) == alone


def test_a_killed_engine_is_a_pause(http: httpx.Client, serve_pid: int) -> None:
    """P5: 16 streams, the engine process is killed, and every client gets the text it would have had."""
    bodies = [
        {"prompt": f"{PROMPTS[i % 6]} {i}", "max_tokens": 24, "min_tokens": 24, "seed": i, "temperature": 0.8}
        for i in range(16)
    ]
    alone = [post(http, C, body)["choices"][0]["text"] for body in bodies]
    first_tokens = threading.Barrier(17, timeout=60)

    def stream(body: dict[str, Any]) -> str:
        with http.stream("POST", C, json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            text = next(lines) + "\n"
            first_tokens.wait()
            return text + "\n".join(lines) + "\n"

    with ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(stream, body) for body in bodies]
        first_tokens.wait()
        (engine,) = Path(f"/proc/{serve_pid}/task/{serve_pid}/children").read_text().split()
        os.kill(int(engine), signal.SIGKILL)
        texts = [
            "".join(chunk["choices"][0]["text"] for chunk in parse_events(done.result(60)))
            for done in streams
        ]
    assert texts == alone
    restarts = re.search(r"^chairlift:engine_restarts_total (\S+)", http.get("/metrics").text, re.MULTILINE)
    assert restarts is not None
    assert float(restarts[1]) >= 1
    assert http.get("/health").status_code == 200
