"""A progress bar on stderr: one redrawn line on a terminal, silent elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_REDRAW_S = 0.1
_BAR_CELLS = 24


class Progress:
    """Counts towards `total` units and draws at most ten times a second. Use as a context manager.

    Args:
        label: what is going on, shown before the bar.
        total: units expected, 0 when unknown.
        unit: name of one unit, e.g. "requests" or "MB".
        enabled: False draws nothing; None draws on a terminal only.
    """

    def __init__(
        self,
        label: str,
        total: float,
        unit: str,
        *,
        enabled: bool | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = self._stream.isatty() if enabled is None else enabled
        self._done = 0.0
        self._started = self._drawn = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            self._draw()
            self._stream.write("\n")
            self._stream.flush()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Add `amount` units done; `note` stands at the end of the line."""
        self._done += amount
        now = time.monotonic()
        if self._enabled and now - self._drawn >= _REDRAW_S:
            self._drawn = now
            self._draw(note)

    def _draw(self, note: str = "") -> None:
        share = min(1.0, self._done / self._total) if self._total else 0.0
        filled = round(share * _BAR_CELLS)
        bar = "█" * filled + "░" * (_BAR_CELLS - filled)
        rate = self._done / max(1e-9, time.monotonic() - self._started)
        counts = f"{self._done:.0f}/{self._total:.0f} {self._unit}, {rate:.1f} {self._unit}/s"
        self._stream.write(f"\r{self._label} {bar} {counts} {note}\x1b[K")
        self._stream.flush()
