"""Requests to measure with: a deterministic synthetic mix, or a file of token ids and lengths."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from chairlift.errors import ConfigError

_FIRST_PLAIN_ID = 100  # below are control tokens in every vocabulary we know


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: when it arrives, what it asks, how much it wants back."""

    arrival_s: float  # after the start of the run
    prompt_token_ids: list[int]
    max_tokens: int


def synthetic(number: int, *, vocab_size: int, seed: int = 7, interval_s: float = 0.12) -> list[WorkItem]:
    """`number` requests with long-tailed lengths (prompts 8 to 320 tokens, answers 8 to 160) and Poisson arrivals."""
    rng = random.Random(seed)
    items, now = [], 0.0
    for _ in range(number):
        prompt = min(320, 8 + int(rng.expovariate(1 / 48)))
        answer = min(160, 8 + int(rng.expovariate(1 / 48)))
        ids = [rng.randrange(_FIRST_PLAIN_ID, vocab_size) for _ in range(prompt)]
        items.append(WorkItem(now, ids, answer))
        now += rng.expovariate(1 / interval_s)
    return items


def from_file(path: str) -> list[WorkItem]:
    """Read `{"requests": [{"prompt_token_ids": [...], "max_tokens": n, "arrival_s": optional}]}`.

    Raises:
        ConfigError: the file is not of that form.
    """
    try:
        requests = json.loads(Path(path).read_text())["requests"]
        return [
            WorkItem(
                float(r.get("arrival_s", 0.0)), [int(i) for i in r["prompt_token_ids"]], int(r["max_tokens"])
            )
            for r in requests
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--workload {path}: not a workload file ({type(error).__name__}: {error})"
        ) from error
