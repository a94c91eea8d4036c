"""What happened to each request and when, from the records of the steps. A bounded ring: the last N requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chairlift.engine.types import StepFrame


@dataclass(slots=True)
class Run:
    """Adjacent steps in which a request had the same number of rows: one prefill chunk, or a stretch of decode."""

    first_step: int
    last_step: int
    tokens_per_step: int
    num_computed_tokens: int  # KV stored before the first step
    started_at: float
    finished_at: float


@dataclass(slots=True)
class ChoiceRecord:
    """The life of one choice; times in seconds on the front end's clock (the engine's, too, on one machine)."""

    request_id: str  # the engine's: that of the request, with "#branch" when it has several choices
    num_prompt_tokens: int
    arrived_at: float
    first_scheduled_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: str | None = None
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_restarts: int = 0  # how often it was sent to a new engine
    waited_behind: int = 0  # choices unfinished when its request arrived
    runs: list[Run] = field(default_factory=list)
    preemptions: list[tuple[int, str]] = field(default_factory=list)  # (step, reason)


class Timeline:
    """Records of unfinished requests and of the last `history` finished ones."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._live: dict[str, ChoiceRecord] = {}
        self._requests: dict[str, list[ChoiceRecord]] = {}
        self._finished: deque[tuple[str, list[ChoiceRecord]]] = deque()  # oldest first

    def arrived(self, request_id: str, choice_ids: Sequence[str], num_prompt_tokens: int, now: float) -> None:
        """A request was accepted; it replaces a finished one with the same id."""
        behind = len(self._live)
        records = [ChoiceRecord(i, num_prompt_tokens, now, waited_behind=behind) for i in choice_ids]
        self._requests[request_id] = records
        self._live.update(zip(choice_ids, records, strict=True))

    def stepped(self, frame: StepFrame) -> None:
        """Enter the rows and preemptions of a step."""
        step, started, finished = frame.step, frame.started_at, frame.finished_at
        for row in frame.rows:
            record = self._live.get(row.request_id)
            if record is not None:
                _enter_row(record, step, row.num_scheduled_tokens, row.num_computed_tokens, started, finished)
        for request_id, reason in frame.preempted:
            record = self._live.get(request_id)
            if record is not None:
                record.preemptions.append((step, reason))

    def boarded_at(self, choice_id: str, default: float) -> float:
        """When the first step with rows of an unfinished choice began."""
        boarded = self._live[choice_id].first_scheduled_at
        return default if boarded is None else boarded

    def got_tokens(self, choice_id: str, number: int, num_cached_tokens: int, now: float) -> None:
        """Output tokens of a choice came."""
        record = self._live[choice_id]
        if record.first_token_at is None:
            record.first_token_at, record.num_cached_tokens = now, num_cached_tokens
        record.num_output_tokens += number

    def restarted(self, choice_id: str) -> None:
        """A choice was sent to a new engine."""
        self._live[choice_id].num_restarts += 1

    def finished(self, choice_id: str, request_id: str, reason: str, now: float) -> None:
        """A choice ended; the oldest finished request is forgotten when the ring is full."""
        record = self._live.pop(choice_id)
        record.finished_at, record.finish_reason = now, reason
        records = self._requests[request_id]
        if all(each.finished_at is not None for each in records):
            self._finished.append((request_id, records))
        while len(self._finished) > self._history:
            oldest, its_records = self._finished.popleft()
            if self._requests.get(oldest) is its_records:
                del self._requests[oldest]

    def describe(self, request_id: str) -> dict[str, Any] | None:
        """`{"request_id", "choices": [ChoiceRecord as a dict, ...]}`, or None when it is not remembered."""
        records = self._requests.get(request_id)
        if records is None:
            return None
        return {"request_id": request_id, "choices": [asdict(record) for record in records]}


def _enter_row(
    record: ChoiceRecord, step: int, tokens: int, computed: int, started: float, finished: float
) -> None:
    """Extend the last run when this step continues it: a thousand decode steps are one entry."""
    if record.first_scheduled_at is None:
        record.first_scheduled_at = started
    if record.runs:
        last = record.runs[-1]
        if last.last_step == step - 1 and last.tokens_per_step == tokens == 1:
            last.last_step, last.finished_at = step, finished
            return
    record.runs.append(Run(step, step, tokens, computed, started, finished))
