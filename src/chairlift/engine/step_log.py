"""One JSON line per step, to read after the fact what ran when and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import msgspec

from chairlift.engine.types import StepFrame


class StepLog:
    """Writes each step's record to a file, line by line:

        {"step": 7, "started_at": 1.25, "finished_at": 1.31, "rows": [[id, num_scheduled_tokens,
         num_computed_tokens, is_new], ...], "preempted": [[id, reason], ...], "finished": [[id, reason], ...],
         "stats": {"num_running": ..., ...}}

    Times are seconds of the engine's monotonic clock. "finished" has the ends that the engine decided, not aborts.
    """

    def __init__(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Open `target` for writing, or write to a binary file that the caller keeps open and closes."""
        self._owned = isinstance(target, (str, os.PathLike))
        self._file: IO[bytes] = (
            Path(target).open("wb")  # noqa: SIM115 - closed by close()
            if isinstance(target, (str, os.PathLike))
            else target
        )
        self._encoder = msgspec.json.Encoder()

    def write(self, frame: StepFrame) -> None:
        """Append a step; it is on its way to the file when this returns."""
        record = {
            "step": frame.step,
            "started_at": frame.started_at,
            "finished_at": frame.finished_at,
            "rows": frame.rows,
            "preempted": frame.preempted,
            "finished": [(u.request_id, u.finish_reason) for u in frame.updates if u.finish_reason],
            "stats": msgspec.structs.asdict(frame.stats),
        }
        self._file.write(self._encoder.encode(record) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._owned:
            self._file.close()
