"""The requests of a data set are what was asked for, the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.bench.datasets import DatasetSpec, load
from chairlift.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9051690,10,109
2023-11-16 18:15:51.2224670,0,0
"""


@pytest.fixture
def azure(tmp_path: Path) -> str:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return str(path)


def test_random_requests_have_the_lengths_asked_for() -> None:
    """Exact lengths, ids of the vocabulary, equal for a seed and different for another."""
    spec = DatasetSpec("random", num_prompts=5, input_len=7, output_len=3)
    items = load(spec, 500)
    assert [(len(i.prompt_token_ids), i.max_tokens, i.arrival_s) for i in items] == [(7, 3, 0.0)] * 5
    assert all(100 <= token < 500 for item in items for token in item.prompt_token_ids)
    assert items == load(spec, 500) != load(DatasetSpec("random", None, 5, 7, 3, seed=1), 500)


def test_random_lengths_may_vary() -> None:
    """A ratio of 0.5 around 10 is 5 to 15, and both ends come."""
    items = load(DatasetSpec("random", num_prompts=400, input_len=10, output_len=1, range_ratio=0.5), 500)
    assert {len(item.prompt_token_ids) for item in items} == set(range(5, 16))
    assert {item.max_tokens for item in items} <= {1, 2}


def test_the_lengths_of_an_azure_trace(azure: str) -> None:
    """Rows in order, arrivals from the first one, cut where asked, never empty."""
    items = load(DatasetSpec("azure", azure), 500)
    assert [(len(i.prompt_token_ids), i.max_tokens) for i in items] == [(374, 44), (10, 109), (1, 1)]
    assert [round(i.arrival_s, 3) for i in items] == [0, 4.225, 4.542]
    cut = load(DatasetSpec("azure", azure, num_prompts=2, input_len=100, output_len=50), 500)
    assert [(len(i.prompt_token_ids), i.max_tokens) for i in cut] == [(100, 44), (10, 50)]


def test_a_workload_file_is_taken_as_it_is(tmp_path: Path) -> None:
    """The ids and lengths of the file, the first so many."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"requests": [{"prompt_token_ids": [5, 6], "max_tokens": n} for n in (3, 4)]}))
    items = load(DatasetSpec("workload", str(path), num_prompts=1), 500)
    assert [(i.prompt_token_ids, i.max_tokens) for i in items] == [([5, 6], 3)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (DatasetSpec("random", num_prompts=0), "--num-prompts is 0; it must be at least 1"),
        (DatasetSpec("random", input_len=0), "--input-len is 0"),
        (DatasetSpec("random", output_len=-1), "--output-len is -1"),
        (DatasetSpec("random", range_ratio=1.0), r"--random-range-ratio is 1; it must be in \[0, 1\)"),
        (DatasetSpec("azure", "x.csv", range_ratio=0.5), "--random-range-ratio is for"),
        (DatasetSpec("random", "x.csv"), "--dataset-name random takes no --dataset-path"),
        (DatasetSpec("azure"), "--dataset-name azure takes a --dataset-path"),
        (DatasetSpec("workload", "w.json", output_len=4), "a workload file has its own lengths"),
        (DatasetSpec("workload", "/nope.json"), "--workload /nope.json: not a workload file"),
        (DatasetSpec("azure", "/nope.csv"), "--dataset-path /nope.csv: "),
    ],
)
def test_settings_that_make_no_sense_are_refused(spec: DatasetSpec, message: str) -> None:
    """No setting is ignored: the error names the flag."""
    with pytest.raises(ConfigError, match=message):
        load(spec, 500)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column TIMESTAMP"),
        ("", "no column TIMESTAMP"),
        (AZURE.replace("374", "many"), "row 1: "),
        (AZURE + "2023-11-16 18:15:52.0,5\n", "row 4: "),
        (AZURE.replace("2023-11-16 18:15:50", "soon"), "row 2: "),
    ],
)
def test_a_file_that_is_no_trace_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """The error says which row, or which column is missing."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(DatasetSpec("azure", str(path)), 500)
