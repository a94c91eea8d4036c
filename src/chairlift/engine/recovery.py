"""Who goes back on board after the engine died, and who may have killed it. Pure bookkeeping, no I/O.

A crash costs clients a pause, not an error: every unfinished request is sent again with the tokens it has. The
exception is an engine that dies again and again:

    - A crash counts against the requests that were in the engine and have got no token since they were sent.
      At the second such crash in a row a request becomes a suspect.
    - Suspects are tried one at a time, beside those that are none: the next one is sent when the one before has
      got a token, which clears it. A suspect that was on trial when the engine died goes first, before all
      others, into the next engine.
    - It fails if the engine dies while it is computed, or in its very first step. One that only waited in the
      engine's queue is not to blame.
    - When several engines in a row have died and no request at all got a token, the fault is not theirs: all of
      them fail, so that everybody has an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

SUSPECT_AFTER = 2
GIVE_UP_AFTER = 5


class CrashLedger:
    """Counts crashes per request, and holds suspects back while another one is tried."""

    def __init__(self) -> None:
        self._crashes: dict[str, int] = {}  # since the request last got a token; absent = 0
        self._held: dict[str, None] = {}  # suspects that wait for their turn, in order of arrival
        self._on_trial: str | None = None
        self._goes_first = False  # the one on trial was sent to this engine before all others
        self._was_computed = False  # the one on trial had rows in a step that ended
        self._num_steps = 0  # of this engine
        self._in_a_row = 0  # crashes without any progress

    def crashed(self, unfinished: Iterable[str]) -> list[str]:
        """Judge the requests that are unfinished, in order of arrival, after the engine died.

        Returns those that fail now. The others are to be sent to the next engine as `boarding` says.
        """
        ids = list(unfinished)
        self._in_a_row += 1
        failed = self._guilty(ids)
        counts = {r: self._crashes.get(r, 0) + (r not in self._held) for r in ids if r not in failed}
        self._crashes = counts
        suspects = [r for r in counts if counts[r] >= SUSPECT_AFTER]
        suspects.sort(key=lambda r: r != self._on_trial)  # stable: it first, then by arrival
        self._held = dict.fromkeys(suspects)
        self._num_steps = 0
        self._try_next(goes_first=True)
        return failed

    def boarding(self, unfinished: Iterable[str]) -> list[str]:
        """Which of the unfinished requests to send to the engine that has just started, in this order."""
        ids = [r for r in unfinished if r not in self._held]
        return sorted(ids, key=lambda r: r != self._on_trial)

    def stepped(self, computed: Iterable[str]) -> None:
        """The engine has finished a step with rows of these requests."""
        self._num_steps += 1
        if self._on_trial is not None and not self._was_computed:
            self._was_computed = self._on_trial in computed

    def progressed(self, request_id: str) -> str | None:
        """A request got a token; returns the suspect to send now, if one is next."""
        self._in_a_row = 0
        return self.ended(request_id) if self._crashes else None

    def ended(self, request_id: str) -> str | None:
        """A request is above suspicion, finished or aborted; returns the suspect to send now, if one is next."""
        if self._crashes.pop(request_id, None) is None:
            return None
        self._held.pop(request_id, None)
        return self._try_next(goes_first=False) if request_id == self._on_trial else None

    def _guilty(self, ids: list[str]) -> list[str]:
        if self._in_a_row >= GIVE_UP_AFTER:
            self._in_a_row = 0
            return ids
        caught = self._was_computed or (self._goes_first and self._num_steps == 0)
        return [r for r in ids if r == self._on_trial and caught]

    def _try_next(self, *, goes_first: bool) -> str | None:
        self._on_trial = next(iter(self._held), None)
        self._goes_first, self._was_computed = goes_first, False
        if self._on_trial is not None:
            del self._held[self._on_trial]
        return self._on_trial
