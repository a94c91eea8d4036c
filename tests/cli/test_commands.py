"""The commands as a person runs them: subprocesses, on the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from cli.serving import SMALL, serving


def chairlift(
    *args: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chairlift", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_generate_prints_only_the_text(tiny_model: Path) -> None:
    """stdout is the completion and a newline; the same again is the same text, another seed another."""
    args = (
        "generate",
        "hello",
        "--model",
        str(tiny_model),
        "--max-tokens",
        "12",
        "--temperature",
        "1",
        *SMALL,
    )
    first, again, other = (chairlift(*args, "--seed", seed) for seed in ("1", "1", "2"))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout != other.stdout
    assert first.stderr == ""


def test_generate_reads_standard_input(tiny_model: Path) -> None:
    """`-` takes the prompt from a pipe."""
    direct = chairlift("generate", "hello", "--model", str(tiny_model), "--max-tokens", "4", *SMALL)
    piped = chairlift("generate", "-", "--model", str(tiny_model), "--max-tokens", "4", *SMALL, stdin="hello")
    assert piped.stdout == direct.stdout


def test_a_refused_prompt_is_one_line(tiny_model: Path) -> None:
    """A prompt over the context is explained, with both numbers, and the exit code is not 0."""
    done = chairlift("generate", "x " * 600, "--model", str(tiny_model), *SMALL)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "512" in done.stderr
    assert "Traceback" not in done.stderr


def test_chat_keeps_a_conversation(tiny_model: Path) -> None:
    """Each line gets an answer on stdout; /clear starts anew, so the same question gets the same answer."""
    lines = "hi\n/clear\nhi\n/exit\nnever read\n"
    done = chairlift(
        "chat", "--model", str(tiny_model), "--max-tokens", "6", "--temperature", "0", *SMALL, stdin=lines
    )
    assert done.returncode == 0, done.stderr
    half = len(done.stdout) // 2
    assert done.stdout[:half] == done.stdout[half:] != ""


def test_env_says_what_was_found() -> None:
    """Versions, processor, backend; --json for machines."""
    facts = json.loads(chairlift("env", "--json").stdout)
    assert facts["backend"] in ("cpu", "reference")
    assert {"chairlift", "python", "cpu", "numpy", "memory available"} <= set(facts)


def test_bench_lanes_draws_a_run(tiny_model: Path, tmp_path: Path) -> None:
    """The picture is valid SVG with a lane per request."""
    target = tmp_path / "lanes.svg"
    done = chairlift(
        "bench", "lanes", "--model", str(tiny_model), "--requests", "3", "-o", str(target), *SMALL
    )
    assert done.returncode == 0, done.stderr
    root = ElementTree.fromstring(target.read_text())
    assert "3 requests" in "".join(root.itertext())


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ('[{"prompt_token_ids": [5, 99999], "max_tokens": 3}]', "request 0 has token id 99999"),
        (
            '[{"prompt_token_ids": [5], "max_tokens": 3}, {"prompt_token_ids": [], "max_tokens": 3}]',
            "requests[1].prompt_token_ids",
        ),
        ('[{"prompt_token_ids": [5], "max_tokens": 9999}]', "request 0: "),
    ],
)
def test_bench_lanes_refuses_what_the_engine_would(
    tiny_model: Path, tmp_path: Path, requests: str, message: str
) -> None:
    """A request that cannot run is an error that names it, not a lane without a ride."""
    workload = tmp_path / "w.json"
    workload.write_text(f'{{"requests": {requests}}}')
    target = tmp_path / "lanes.svg"
    args = ("--workload", str(workload), "-o", str(target), "--model", str(tiny_model))
    done = chairlift("bench", "lanes", *args, *SMALL)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not target.exists()


def test_bench_lanes_refuses_a_file_that_is_no_workload(tiny_model: Path, tmp_path: Path) -> None:
    """A wrong --workload is a message, not a traceback."""
    wrong = tmp_path / "w.json"
    wrong.write_text('{"requests": [{"max_tokens": 3}]}')
    done = chairlift("bench", "lanes", "--model", str(tiny_model), "--workload", str(wrong), *SMALL)
    assert done.returncode == 2
    assert "not a workload file" in done.stderr


def get(url: str, key: str | None = None) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        body: dict[str, object] = json.loads(answer.read())
        return body


def test_serve_starts_answers_and_stops(tiny_model: Path, tmp_path: Path) -> None:
    """The banner tells where and what; the flags reach the API; SIGINT ends both processes cleanly."""
    log = tmp_path / "steps.jsonl"
    with serving(tiny_model, "--served-model-name", "mine", "--step-log", str(log)) as (url, banner):
        assert "serves mine" in banner
        assert "context 512 tokens" in banner
        assert all(len(line) < 130 for line in banner.splitlines() if " try: " not in line)
        models = get(url + "/v1/models")["data"]
        assert isinstance(models, list)
        assert models[0]["id"] == "mine"
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.loads(answer.read())["usage"]["completion_tokens"] == 3
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(row[1] for step in steps for row in step["rows"]) == 3 + 2


def test_serve_takes_the_key_from_the_environment(tiny_model: Path) -> None:
    """$CHAIRLIFT_API_KEY locks the API; health stays open for probes."""
    with serving(tiny_model, env={"CHAIRLIFT_API_KEY": "s3cret"}) as (url, _):
        assert get(url + "/health")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(url + "/v1/models")
        assert get(url + "/v1/models", key="s3cret")


def test_serve_reports_what_the_engine_process_refuses(tiny_model: Path) -> None:
    """A setting that only the engine can judge (a context larger than the pool) is one line and exit code 2."""
    done = chairlift(
        "serve", str(tiny_model), "--port", "0", "--num-kv-blocks", "4", "--max-model-len", "512"
    )
    assert done.returncode == 2
    assert "--max-model-len is 512" in done.stderr
    assert "Traceback" not in done.stderr
