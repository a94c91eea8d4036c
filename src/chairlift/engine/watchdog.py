"""Notices an engine that neither dies nor answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls `on_stuck` when, while `is_busy`, no sign of life came for `timeout` seconds.

    One timer at most is pending, and a sign of life costs an assignment.
    """

    def __init__(
        self,
        timeout: float,
        clock: Callable[[], float],
        is_busy: Callable[[], bool],
        on_stuck: Callable[[str], None],
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._is_busy = is_busy
        self._on_stuck = on_stuck
        self._last_sign = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """There is work: watch from now on, unless that is being done already."""
        if self._timer is None and self._is_busy():
            self._last_sign = self._clock()
            self._schedule(self._timeout)

    def disarm(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sign_of_life(self, now: float) -> None:
        """The engine has shown that it works."""
        self._last_sign = now

    def _schedule(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._is_busy():
            return
        silent = self._clock() - self._last_sign
        if silent >= self._timeout:
            self._on_stuck(f"no step finished for {silent:.1f} s (--step-timeout {self._timeout:g})")
        else:
            self._schedule(self._timeout - silent)
