"""Who goes back on board after the engine died, and who may have killed it. Pure bookkeeping, no I/O.

A crash costs clients a pause, not an error: every unfinished request is sent again with the tokens it has. The
exception is an engine that dies again and again. Each crash is counted against every request that was in the
engine and has got no token since it was last sent:

    1st crash   all are sent again together
    2nd crash   such requests become suspects: they are sent again one at a time, the next one when the one
                before has got a token; a request that has got a token since is no suspect
    3rd crash   the suspect that was in the engine fails; the others are unharmed
    5th crash in a row in which no request at all got a token: the fault is not theirs, all of them fail
"""

from __future__ import annotations

from collections.abc import Iterable

SUSPECT_AFTER = 2
FAIL_AFTER = 3
GIVE_UP_AFTER = 5


class CrashLedger:
    """Counts crashes per request, and holds suspects back while another one is tried."""

    def __init__(self) -> None:
        self._crashes: dict[str, int] = {}  # since the request last got a token; absent = 0
        self._held: dict[str, None] = {}  # suspects that wait for their turn, in order of arrival
        self._on_trial: str | None = None
        self._in_a_row = 0  # crashes without any progress

    def crashed(self, unfinished: Iterable[str]) -> list[str]:
        """Judge the requests that are unfinished, in order of arrival, after the engine died.

        Returns those that fail now. Of the others, those not `is_held` are to be sent to the next engine.
        """
        ids = list(unfinished)
        self._in_a_row += 1
        self._crashes = {r: self._crashes.get(r, 0) + (r not in self._held) for r in ids}
        if self._in_a_row >= GIVE_UP_AFTER:
            self._in_a_row = 0
            failed = ids
        else:
            failed = [r for r in ids if self._crashes[r] >= FAIL_AFTER]
        for request_id in failed:
            del self._crashes[request_id]
        self._held = dict.fromkeys(r for r, count in self._crashes.items() if count >= SUSPECT_AFTER)
        self._try_next()
        return failed

    def is_held(self, request_id: str) -> bool:
        """True for a suspect whose turn has not come."""
        return request_id in self._held

    def progressed(self, request_id: str) -> str | None:
        """A request got a token; returns the suspect to send now, if one is next."""
        self._in_a_row = 0
        return self.ended(request_id) if self._crashes else None

    def ended(self, request_id: str) -> str | None:
        """A request is above suspicion, finished or aborted; returns the suspect to send now, if one is next."""
        if self._crashes.pop(request_id, None) is None:
            return None
        self._held.pop(request_id, None)
        return self._try_next() if request_id == self._on_trial else None

    def _try_next(self) -> str | None:
        self._on_trial = next(iter(self._held), None)
        if self._on_trial is not None:
            del self._held[self._on_trial]
        return self._on_trial
