"""How front ends reach an engine: in the same process (`InProcessClient`) or as a child process (`ProcessClient`).

A refused request never raises here: it comes back as a `TokenUpdate` with finish_reason "error" in the next frame,
whichever client is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chairlift.engine.engine import Engine
from chairlift.engine.process_client import ProcessClient
from chairlift.engine.types import EngineInfo, EngineRequest, StepFrame, StepStats

__all__ = ["AsyncEngineClient", "InProcessClient", "ProcessClient", "SyncEngineClient"]


class SyncEngineClient(Protocol):
    """An engine that runs when it is told to, in the caller's thread."""

    @property
    def info(self) -> EngineInfo:
        """What was resolved at start."""
        ...

    def add_request(self, request: EngineRequest) -> None:
        """Queue one stream of tokens; a refusal arrives in the next frame."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests and free their blocks; unknown ids are ignored, and nothing more is said of known ones."""
        ...

    def step(self) -> StepFrame | None:
        """Run one step; None when there was nothing to do. Raises EngineDeadError once a step has failed."""
        ...

    def close(self) -> None:
        """Stop threads and release memory."""
        ...


class AsyncEngineClient(Protocol):
    """An engine that runs by itself and sends a frame a step. Calls that only send never wait."""

    async def start(self) -> EngineInfo:
        """Wait until the engine is ready.

        Raises:
            ConfigError, ModelLoadError: the engine says so.
            EngineDeadError: it ended in any other way.
        """
        ...

    async def restart(self) -> EngineInfo:
        """Kill what is left of the engine and start it anew; raises like `start`."""
        ...

    def add_request(self, request: EngineRequest) -> None:
        """Send one stream of tokens. Silently lost when the engine is dead: `next_frame` tells."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Send an abort. Silently lost when the engine is dead: `next_frame` tells."""
        ...

    async def next_frame(self) -> StepFrame:
        """The next frame, in order. Raises EngineDeadError when there will be none."""
        ...

    def kill(self, reason: str) -> None:
        """End a stuck engine by force; `next_frame` then raises EngineDeadError with the reason."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of a live engine process."""
        ...

    def close(self) -> None:
        """Stop the engine, at once and for good."""
        ...


class InProcessClient:
    """The engine in the caller's own process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """What was resolved at start."""
        return self._engine.info

    def stats(self) -> StepStats:
        """Gauges and totals as they stand now."""
        return self._engine.stats()

    def add_request(self, request: EngineRequest) -> None:
        """See `SyncEngineClient.add_request`."""
        self._engine.add_request(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """See `SyncEngineClient.abort`."""
        self._engine.abort(request_ids)

    def step(self) -> StepFrame | None:
        """See `SyncEngineClient.step`."""
        return self._engine.step()

    def close(self) -> None:
        """See `SyncEngineClient.close`."""
        self._engine.close()
