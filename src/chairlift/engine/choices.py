"""The unfinished choices of a front end, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from chairlift.engine.admission import choice_ids
from chairlift.engine.outputs import OutputProcessor
from chairlift.engine.stream import RequestStream
from chairlift.engine.types import EngineRequest, TokenUpdate


@dataclass(slots=True, eq=False)
class Choice:
    """One engine request, and where its output goes."""

    request: EngineRequest
    output: OutputProcessor
    stream: RequestStream
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def id(self) -> str:
        """The engine's name for it."""
        return self.request.request_id

    def resumed(self) -> EngineRequest:
        """The request with the tokens generated so far: what the next engine goes on from."""
        return msgspec.structs.replace(self.request, output_token_ids=list(self.output.token_ids))

    def note(self, update: TokenUpdate) -> None:
        """Keep what an update says about the prompt; choice 0 speaks for all."""
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

    def unused(self, request_id: str, n: int) -> str:
        """`request_id`, or with a suffix when it or one of its `n` choices has an id that is in use."""
        candidate, copy = request_id, 1
        while candidate in self._by_request or not self._by_id.keys().isdisjoint(choice_ids(candidate, n)):
            copy += 1
            candidate = f"{request_id}~{copy}"
        return candidate
