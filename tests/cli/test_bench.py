"""The benchmark commands as a person runs them: on the tiny model, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.cli.main import main
from cli.serving import SMALL, serving


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chairlift", "bench", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[str]:
    with serving(tiny_model) as (url, _):
        yield url


def test_throughput_counts_every_token(tiny_model: Path, tmp_path: Path) -> None:
    """vLLM's lines on stdout, its keys in the file; n answers per prompt count n times."""
    target = tmp_path / "out.json"
    lengths = ("--num-prompts", "3", "--input-len", "20", "--output-len", "4")
    done = bench(
        "throughput", "--model", str(tiny_model), *lengths, "--n", "2", "--output-json", str(target), *SMALL
    )
    assert done.returncode == 0, done.stderr
    first, prompt, output = done.stdout.splitlines()[:3]
    assert re.fullmatch(
        r"Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s", first
    )
    assert prompt == "Total num prompt tokens:  60"
    assert output == "Total num output tokens:  24"
    result = json.loads(target.read_text())
    assert {
        "elapsed_time",
        "num_requests",
        "total_num_tokens",
        "requests_per_second",
        "tokens_per_second",
    } <= set(result)
    assert result["total_num_tokens"] == 84
    assert 0 < result["execute_s"] < result["elapsed_time"]


def test_throughput_reads_a_workload(tiny_model: Path, tmp_path: Path) -> None:
    """The file's ids and lengths are what runs."""
    workload = tmp_path / "w.json"
    workload.write_text('{"requests": [{"prompt_token_ids": [5, 6, 7], "max_tokens": 2}]}')
    done = bench("throughput", "--model", str(tiny_model), "--workload", str(workload), *SMALL)
    assert "prompt tokens:  3\n" in done.stdout
    assert "output tokens:  2\n" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--input-len 600", "512"),
        ("--n 1000", "n is 1000"),
        ("--temperature -1", "temperature is -1"),
        ("--workload {workload}", "99999"),
        ("--workload {workload} --num-prompts 5", "--num-prompts is 5; "),
    ],
)
def test_throughput_refuses_what_the_engine_would(
    tiny_model: Path, tmp_path: Path, args: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that its flags or its file made wrong is a wrong flag: exit code 2 and one line."""
    workload = tmp_path / "w.json"
    workload.write_text('{"requests": [{"prompt_token_ids": [5, 99999], "max_tokens": 2}]}')
    words = args.format(workload=workload).split()
    assert main(["bench", "throughput", "--model", str(tiny_model), *words, *SMALL]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_serve_measures_a_server(server: str, endpoint: str, tmp_path: Path) -> None:
    """Every request completes with the tokens asked for; the file has vLLM's keys, and details on request."""
    lengths = ("--num-prompts", "5", "--input-len", "10", "--output-len", "6", "--vocab-size", "500")
    saved = ("--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "r.json")
    done = bench("serve", "--base-url", server, "--endpoint", endpoint, *lengths, *saved)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("============ Serving Benchmark Result ============\n")
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (5, 0, 30)
    assert result["total_input_tokens"] == 50 or endpoint != "/v1/completions"
    assert result["total_input_tokens"] > 0
    assert result["output_lens"] == [6] * 5
    assert len(result["ttfts"]) == 5
    assert {"mean_ttft_ms", "p99_tpot_ms", "median_itl_ms", "client_cpu_share", "request_rate"} <= set(result)
    assert not re.search("Error", done.stdout)


def test_serve_with_a_rate_and_a_limit(server: str) -> None:
    """Ten a second, two at a time, goodput and percentiles: all of it is in the report."""
    done = bench(
        *("serve", "--base-url", server, "--num-prompts", "4", "--input-len", "8", "--output-len", "3"),
        *("--vocab-size", "500", "--request-rate", "20", "--burstiness", "0.5", "--max-concurrency", "2"),
        *("--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,90", "--goodput", "ttft:60000"),
    )
    assert done.returncode == 0, done.stderr
    figures = dict(re.findall(r"^(.+?): +([\d.]+) *$", done.stdout, re.MULTILINE))
    assert figures["Successful requests"] == "4"
    assert figures["Maximum request concurrency"] == "2"
    assert figures["Request rate configured (RPS)"] == "20.00"
    assert figures["Request goodput (req/s)"] == figures["Request throughput (req/s)"]
    assert float(figures["Peak concurrent requests"]) <= 2
    assert {"P50 TTFT (ms)", "P90 E2EL (ms)"} <= set(figures)
    assert "TPOT" not in done.stdout


def test_serve_shows_failed_requests(server: str) -> None:
    """Requests that the server refuses are counted and told, and none completed is exit code 1."""
    lengths = ("--num-prompts", "3", "--input-len", "510", "--output-len", "50", "--vocab-size", "500")
    done = bench("serve", "--base-url", server, *lengths)
    assert done.returncode == 1
    assert done.stdout.startswith("3 requests failed")
    assert "HTTP 400" in done.stdout
    assert re.search(r"Failed requests: +3 ", done.stdout)


def test_serve_without_a_server() -> None:
    """One line that says where it looked."""
    done = bench("serve", "--port", "1")
    assert done.returncode == 1
    assert "no server at http://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_stops_when_the_first_request_fails(server: str) -> None:
    """A wrong model name is found out before anything is measured."""
    done = bench("serve", "--base-url", server, "--model", "nobody", "--vocab-size", "500")
    assert done.returncode == 1
    assert "the first request failed, nothing was measured: HTTP 404" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("throughput --n 0", "--n is 0; it must be at least 1"),
        ("serve --burstiness 0.5", "--burstiness shapes the gaps of --request-rate, which is not given"),
        ("serve --base-url http://127.0.0.1:1 --port 2", "--base-url stands instead of --host and --port"),
        ("serve --self-timed", "--self-timed: the requests of this data set have no arrival times"),
        ("throughput --output-json /nope/x", "--output-json /nope/x: no folder /nope"),
        ("throughput --workload w.json --dataset-path x", "--workload is a data set of its own"),
        ("serve --request-rate 0", "--request-rate is 0; it must be more than 0"),
        ("serve --burstiness nan", "--burstiness is nan"),
        ("serve --max-concurrency 0", "--max-concurrency is 0"),
        ("serve --num-warmups -1", "--num-warmups is -1"),
        ("serve --self-timed --request-rate 5", "--self-timed takes the arrivals"),
        ("serve --percentile-metrics ttft,latency", "--percentile-metrics has 'latency'"),
        ("serve --metric-percentiles 99,x", "--metric-percentiles has 'x'"),
        ("serve --metric-percentiles 101", "--metric-percentiles has 101"),
        ("serve --goodput itl:5", "--goodput has 'itl:5'"),
        ("serve --goodput ttft:fast", "--goodput has 'fast'"),
        ("serve --result-filename x.json", "--result-filename needs --save-result"),
        ("serve --save-result --result-dir /nope", "--result-dir /nope"),
        ("serve --header nonsense --model m", "--header has 'nonsense'"),
        ("serve --base-url nowhere", "--base-url is 'nowhere'"),
        ("serve --input-len 0", "--input-len is 0"),
    ],
)
def test_a_wrong_flag_is_refused_before_any_work(
    args: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that names the flag; no model is opened and no server asked."""
    words = args.split()
    model = ["--model", "/no/such.gguf"] if words[0] == "throughput" else []
    assert main(["bench", *words, *model]) == 2
    assert message in capsys.readouterr().err
