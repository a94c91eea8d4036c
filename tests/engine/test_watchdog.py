"""Tests of the watchdog."""

from __future__ import annotations

import asyncio
import time

from chairlift.engine.watchdog import Watchdog
from fakes import run_async, until


def test_silence_is_noticed_and_told() -> None:
    """Without a sign of life for the timeout the engine counts as stuck, once, and the reason names the flag."""

    async def main() -> None:
        reasons: list[str] = []
        watchdog = Watchdog(0.1, lambda: True, reasons.append)
        start = time.monotonic()
        watchdog.arm()
        await until(lambda: bool(reasons))
        assert time.monotonic() - start >= 0.09
        await asyncio.sleep(0.2)
        assert reasons == ["no step finished for 0.1 s (--step-timeout)"]

    run_async(main())


def test_signs_of_life_put_it_off() -> None:
    """An engine that steps now and then is never stuck, nor is one with nothing to do, nor an unwatched one."""

    async def main() -> None:
        reasons: list[str] = []
        watchdog = Watchdog(0.3, lambda: True, reasons.append)
        idle = Watchdog(0.1, lambda: False, reasons.append)
        disarmed = Watchdog(0.1, lambda: True, reasons.append)
        for each in (watchdog, idle, disarmed):
            each.arm()
        disarmed.disarm()
        for _ in range(12):
            await asyncio.sleep(0.05)
            watchdog.sign_of_life()
        assert reasons == []
        watchdog.disarm()

    run_async(main())


def test_time_in_which_the_front_end_stood_still_is_not_the_engines() -> None:
    """A healthy engine must not be killed because its frames could not be read while the event loop was held up."""

    async def main() -> None:
        reasons: list[str] = []
        watchdog = Watchdog(0.2, lambda: True, reasons.append)
        watchdog.arm()
        for _ in range(3):
            time.sleep(0.5)  # the hold-up
            # As in a real loop, the timers that are due come before the task that reads the engine's frames.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert reasons == []
            watchdog.sign_of_life()
        watchdog.disarm()

    run_async(main())
