"""Notices an engine that neither dies nor answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICKS = 10  # per timeout


class Watchdog:
    """Calls `on_stuck` when, while `is_busy`, no sign of life came for `timeout` seconds, or a tick more.

    Silence is counted in ticks of this event loop, and a tick that comes late does not count: while the loop was
    held up it could not read what the engine sent. One timer at most is pending, and a sign of life costs an
    assignment.
    """

    def __init__(self, timeout: float, is_busy: Callable[[], bool], on_stuck: Callable[[str], None]) -> None:
        self._timeout = timeout
        self._tick_s = timeout / TICKS
        self._is_busy = is_busy
        self._on_stuck = on_stuck
        self._silent_ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """There is work: watch from now on, unless that is being done already."""
        if self._timer is None and self._is_busy():
            self._silent_ticks = 0
            self._schedule()

    def disarm(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sign_of_life(self) -> None:
        """The engine has shown that it works."""
        self._silent_ticks = 0

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        timer, self._timer = self._timer, None
        if timer is None or not self._is_busy():
            return
        late = asyncio.get_running_loop().time() - timer.when()
        if late < self._tick_s:
            self._silent_ticks += 1
        if self._silent_ticks > TICKS:
            self._on_stuck(f"no step finished for {self._timeout:g} s (--step-timeout)")
        else:
            self._schedule()
