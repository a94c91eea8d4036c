"""The figures of the report follow from the times of the events, and its text has vLLM's shape."""

from __future__ import annotations

import pytest

from chairlift.bench.load import LoadResult, Traffic
from chairlift.bench.serving_report import ReportOptions, details, document, errors, percentile, text
from chairlift.bench.stream_client import Outcome

LOAD = LoadResult(
    [
        Outcome(
            prompt_tokens=10,
            output_tokens=3,
            sent_at=100.0,
            times=[100.5, 100.6, 100.9],
            texts=["a", "b", "c"],
        ),
        Outcome(prompt_tokens=20, output_tokens=1, sent_at=100.2, times=[101.2], texts=["d"]),
        Outcome(prompt_tokens=30, sent_at=100.2, times=[100.3], texts=["x"], error="HTTP 500: no"),
    ],
    duration_s=2.0,
    client_cpu_s=0.1,
)
OPTIONS = ReportOptions(("ttft", "tpot", "itl", "e2el"), (50.0, 99.0), {"ttft": 600.0, "e2el": 950.0})


def test_figures_follow_from_the_times() -> None:
    """Failed requests count as failed and nowhere else; a single token has no time per token."""
    result = document(LOAD, OPTIONS)
    expected = {
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 30,
        "total_output_tokens": 4,
        "request_throughput": 1.0,
        "request_goodput": 0.5,
        "output_throughput": 2.0,
        "total_token_throughput": 17.0,
        "max_output_tokens_per_s": 3,
        "max_concurrent_requests": 2,
        "client_cpu_share": 0.05,
        "mean_ttft_ms": 750.0,
        "std_ttft_ms": 250.0,
        "p50_ttft_ms": 750.0,
        "mean_tpot_ms": 200.0,
        "mean_itl_ms": 200.0,
        "median_itl_ms": 200.0,
        "p99_itl_ms": 298.0,
        "mean_e2el_ms": 950.0,
    }
    assert {key: pytest.approx(result[key]) for key in expected} == expected


def test_the_peak_is_never_below_the_mean() -> None:
    """A run of a fifth of a second has no full second to count in: 4 tokens in it are 20 a second."""
    short = LoadResult(LOAD.outcomes[:2], duration_s=0.2, client_cpu_s=0.1)
    assert document(short, OPTIONS)["max_output_tokens_per_s"] == pytest.approx(20)


def test_the_text_has_the_shape_that_scripts_know() -> None:
    """Titles are centred in 50 columns and figures begin in column 42, as vLLM prints them."""
    lines = text(document(LOAD, OPTIONS), Traffic(2.0, max_concurrency=8), OPTIONS).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     2         "
    assert lines[2] == "Failed requests:                         1         "
    assert lines[3] == "Maximum request concurrency:             8         "
    assert lines[4] == "Request rate configured (RPS):           2.00      "
    assert "Request goodput (req/s):                 0.50      " in lines
    assert "Client CPU (% of one core):              5.00      " in lines
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "---------------Inter-token Latency----------------" in lines
    assert "P99 ITL (ms):                            298.00    " in lines
    assert lines[-1] == "=" * 50


def test_failures_are_shown() -> None:
    """Each error in a line, and how many there are; nothing where there are none."""
    assert errors(LOAD.outcomes).splitlines() == [
        "1 requests failed (the first 10 at most):",
        "Error 0: HTTP 500: no",
    ]
    assert errors(LOAD.outcomes[:2]) == ""
    assert len(errors([Outcome(error="e")] * 30).splitlines()) == 11


def test_details_have_an_entry_per_request() -> None:
    """Failed requests keep their place."""
    result = details(LOAD)
    assert result["generated_texts"] == ["abc", "d", "x"]
    assert result["output_lens"] == [3, 1, 0]
    assert result["errors"] == ["", "", "HTTP 500: no"]
    assert [len(gaps) for gaps in result["itls"]] == [2, 0, 0]


def test_nothing_completed_is_a_report_too() -> None:
    """All failed: zeros, no division by zero."""
    result = document(LoadResult(LOAD.outcomes[2:], 1.0, 0.0), OPTIONS)
    assert (result["completed"], result["mean_ttft_ms"], result["p99_itl_ms"]) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 99, 0), ([5], 1, 5), ([1, 2, 3, 4], 50, 2.5), ([4, 1, 3, 2], 100, 4)],
)
def test_percentiles_are_numpys(values: list[float], share: float, expected: float) -> None:
    """Linear between neighbours, of values in any order."""
    assert percentile(values, share) == expected
