"""Requests by name of a data set: `random` lengths, those of an Azure trace, or a workload file as it is."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from chairlift.bench.workload import FIRST_PLAIN_ID, WorkItem, from_file
from chairlift.errors import ConfigError

DATASETS = ("random", "azure", "workload")
DEFAULT_PROMPTS = 64
DEFAULT_LEN = 128

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_AZURE_DIGITS = len("2023-11-16 18:15:46.680590")  # datetime knows microseconds, the trace has a digit more


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What was asked for; None is the default of the data set.

    Args:
        path: the file of `azure` and `workload`.
        num_prompts: the first so many requests; 64 random ones, or all of a file.
        input_len: tokens of a random prompt; longer prompts of a trace are cut there.
        output_len: tokens of a random answer; longer answers of a trace are cut there.
        range_ratio: random lengths are uniform in [len * (1 - r), len * (1 + r)].
    """

    name: str
    path: str | None = None
    num_prompts: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    range_ratio: float = 0.0
    seed: int = 0


def load(spec: DatasetSpec, vocab_size: int) -> list[WorkItem]:
    """The requests of a data set; token ids that no file gives are random, plain ones of the vocabulary.

    Raises:
        ConfigError: a setting makes no sense for this data set, or the file is not of its form.
    """
    _check(spec)
    if spec.name == "workload":
        return _first(from_file(spec.path or ""), spec)
    rng = random.Random(spec.seed)
    lengths = _azure_lengths(spec) if spec.name == "azure" else _random_lengths(spec, rng)
    items = [
        WorkItem([rng.randrange(FIRST_PLAIN_ID, vocab_size) for _ in range(prompt)], answer, arrival)
        for prompt, answer, arrival in lengths
    ]
    return _first(items, spec)


def _first(items: list[WorkItem], spec: DatasetSpec) -> list[WorkItem]:
    """As many as were asked for; a file that has fewer is no silent change of the measurement."""
    if spec.num_prompts is not None and len(items) < spec.num_prompts:
        raise ConfigError(f"--num-prompts is {spec.num_prompts}; {spec.path} has only {len(items)} requests")
    return items[: spec.num_prompts]


def _check(spec: DatasetSpec) -> None:
    for flag, value in (
        ("--num-prompts", spec.num_prompts),
        ("--input-len", spec.input_len),
        ("--output-len", spec.output_len),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} is {value}; it must be at least 1")
    if not 0 <= spec.range_ratio < 1:
        raise ConfigError(f"--random-range-ratio is {spec.range_ratio:g}; it must be in [0, 1)")
    if spec.range_ratio and spec.name != "random":
        raise ConfigError(f"--random-range-ratio is for --dataset-name random, not {spec.name}")
    if (spec.path is None) != (spec.name == "random"):
        raise ConfigError(f"--dataset-name {spec.name} takes {'no' if spec.path else 'a'} --dataset-path")
    if spec.name == "workload" and (spec.input_len or spec.output_len):
        raise ConfigError(
            "a workload file has its own lengths; --input-len and --output-len are for the others"
        )


def _random_lengths(spec: DatasetSpec, rng: random.Random) -> Iterator[tuple[int, int, float]]:
    """(prompt, answer, arrival) of each request."""
    for _ in range(spec.num_prompts or DEFAULT_PROMPTS):
        yield (
            _about(spec.input_len or DEFAULT_LEN, spec.range_ratio, rng),
            _about(spec.output_len or DEFAULT_LEN, spec.range_ratio, rng),
            0.0,
        )


def _about(length: int, ratio: float, rng: random.Random) -> int:
    return max(1, rng.randint(round(length * (1 - ratio)), round(length * (1 + ratio))))


def _azure_lengths(spec: DatasetSpec) -> Iterator[tuple[int, int, float]]:
    """Those of the first rows of a CSV of the Azure LLM inference traces; arrivals count from the first row."""
    start: datetime | None = None
    for number, row in enumerate(_azure_rows(spec.path or "")):
        if number == spec.num_prompts:
            return
        try:
            arrived = datetime.fromisoformat(row["TIMESTAMP"][:_AZURE_DIGITS])
            prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"--dataset-path {spec.path}: row {number + 1}: {error}") from error
        start = start or arrived
        yield (
            max(1, min(prompt, spec.input_len or prompt)),
            max(1, min(answer, spec.output_len or answer)),
            max(0.0, (arrived - start).total_seconds()),
        )


def _azure_rows(path: str) -> Iterator[dict[str, str]]:
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in _AZURE_COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise ConfigError(f"--dataset-path {path}: no column {missing[0]}")
            yield from rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--dataset-path {path}: {error}") from error
