"""Requests to measure with: a deterministic synthetic mix, or a file of token ids and lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from chairlift.errors import ConfigError

FIRST_PLAIN_ID = 100  # below are control tokens in every vocabulary we know


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: what it asks, how much it wants back, when it arrives."""

    prompt_token_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    arrival_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # after the start of the run


class _WorkloadFile(msgspec.Struct):
    requests: Annotated[list[WorkItem], msgspec.Meta(min_length=1)]


def synthetic(number: int, *, vocab_size: int, seed: int = 7, interval_s: float = 0.12) -> list[WorkItem]:
    """`number` requests with long-tailed lengths (prompts 8 to 320 tokens, answers 8 to 160) and Poisson arrivals."""
    rng = random.Random(seed)
    items, now = [], 0.0
    for _ in range(number):
        prompt = min(320, 8 + int(rng.expovariate(1 / 48)))
        answer = min(160, 8 + int(rng.expovariate(1 / 48)))
        ids = [rng.randrange(FIRST_PLAIN_ID, vocab_size) for _ in range(prompt)]
        items.append(WorkItem(ids, answer, now))
        now += rng.expovariate(1 / interval_s)
    return items


def from_file(path: str) -> list[WorkItem]:
    """Read `{"requests": [{"prompt_token_ids": [...], "max_tokens": n, "arrival_s": optional}]}`.

    Raises:
        ConfigError: the file is not of that form.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_WorkloadFile).requests
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"--workload {path}: not a workload file ({error})") from error
