"""The unfinished choices of a front end, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import msgspec

from chairlift.engine.admission import choice_ids
from chairlift.engine.outputs import OutputProcessor
from chairlift.engine.stream import RequestStream
from chairlift.engine.types import EngineRequest, TokenUpdate

CUT_IDS_KEPT = 4096


@dataclass(slots=True, eq=False)
class Choice:
    """One engine request, and where its output goes."""

    request: EngineRequest
    output: OutputProcessor
    stream: RequestStream
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_by_engine: bool = False

    @property
    def id(self) -> str:
        """The engine's name for it."""
        return self.request.request_id

    def resumed(self) -> EngineRequest:
        """The request with the tokens generated so far: what the next engine goes on from."""
        return msgspec.structs.replace(self.request, output_token_ids=list(self.output.token_ids))

    def note(self, update: TokenUpdate) -> None:
        """Keep what an update says about the prompt (choice 0 speaks for all), and whether it is the last."""
        self.ended_by_engine = update.finish_reason is not None
        if self.request.branch != 0:
            return
        if not self.output.token_ids:  # later ones may be about a recomputed prompt
            self.stream.usage.cached_tokens = update.num_cached_tokens
        if update.prompt_logprobs is not None:
            self.stream.prompt_logprobs = [None, *update.prompt_logprobs]


class Choices:
    """A mapping of ids to choices, and of streams to theirs."""

    def __init__(self) -> None:
        self._by_id: dict[str, Choice] = {}
        self._by_request: dict[str, list[Choice]] = {}
        self._cut: dict[str, None] = {}  # ids that ended without the engine, oldest first
        self._copies = count(2)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._by_id.values())

    def ids(self) -> list[str]:
        """Ids in order of arrival."""
        return list(self._by_id)

    def get(self, choice_id: str) -> Choice | None:
        """The unfinished choice with this id."""
        return self._by_id.get(choice_id)

    def of(self, stream: RequestStream) -> list[Choice]:
        """The unfinished choices of a stream."""
        return list(self._by_request.get(stream.request_id, ()))

    def add(self, choice: Choice) -> None:
        """Append a choice."""
        self._by_id[choice.id] = choice
        self._by_request.setdefault(choice.stream.request_id, []).append(choice)

    def remove(self, choice: Choice) -> None:
        """Take a choice out."""
        del self._by_id[choice.id]
        siblings = self._by_request[choice.stream.request_id]
        siblings.remove(choice)
        if not siblings:
            del self._by_request[choice.stream.request_id]
        if not choice.ended_by_engine:
            self._cut[choice.id] = None
            if len(self._cut) > CUT_IDS_KEPT:
                del self._cut[next(iter(self._cut))]

    def unused(self, request_id: str, n: int) -> str:
        """`request_id`, or with a suffix when it or one of its `n` choices has an id that is in use.

        So is that of a choice which was cut on this side a short while ago: frames about it may still come.
        """
        candidate = request_id
        while self._is_taken(candidate, n):
            candidate = f"{request_id}~{next(self._copies)}"
        return candidate

    def _is_taken(self, request_id: str, n: int) -> bool:
        if request_id in self._by_request:
            return True
        return any(i in self._by_id or i in self._cut for i in choice_ids(request_id, n))
