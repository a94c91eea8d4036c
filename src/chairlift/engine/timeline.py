"""What happened to each request and when, from the records of the steps. A bounded ring: the last N requests."""

from __future__ import annotations

from collections import OrderedDict
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
    waited_behind: int = 0  # choices unfinished when it arrived
    runs: list[Run] = field(default_factory=list)
    preemptions: list[tuple[int, str]] = field(default_factory=list)  # (step, reason)


class Timeline:
    """Records of unfinished choices and of the last `history` finished ones."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._live: dict[str, ChoiceRecord] = {}
        self._done: OrderedDict[str, ChoiceRecord] = OrderedDict()
        self._choices: dict[str, list[str]] = {}  # request id -> ids of its choices

    def arrived(self, choice_id: str, request_id: str, num_prompt_tokens: int, now: float) -> None:
        """A choice was accepted."""
        self._live[choice_id] = ChoiceRecord(choice_id, num_prompt_tokens, now, waited_behind=len(self._live))
        self._choices.setdefault(request_id, []).append(choice_id)

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

    def finished(self, choice_id: str, reason: str, now: float) -> None:
        """A choice ended; the oldest finished one is forgotten when the ring is full."""
        record = self._live.pop(choice_id)
        record.finished_at, record.finish_reason = now, reason
        self._done[choice_id] = record
        while len(self._done) > self._history:
            oldest, _ = self._done.popitem(last=False)
            self._forget(oldest)

    def describe(self, request_id: str) -> dict[str, Any] | None:
        """`{"request_id", "choices": [ChoiceRecord as a dict, ...]}`, or None when it is not remembered."""
        choices = self._choices.get(request_id)
        if choices is None:
            return None
        records = [self._live.get(choice_id) or self._done.get(choice_id) for choice_id in choices]
        return {"request_id": request_id, "choices": [asdict(record) for record in records if record]}

    def _forget(self, choice_id: str) -> None:
        request_id = choice_id if choice_id in self._choices else choice_id.rpartition("#")[0]
        siblings = self._choices[request_id]
        siblings.remove(choice_id)
        if not siblings:
            del self._choices[request_id]


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
