"""Tests of the crash ledger."""

from __future__ import annotations

import pytest

from chairlift.engine.recovery import GIVE_UP_AFTER, CrashLedger


def test_one_crash_costs_nobody_anything() -> None:
    """After a first crash every request is sent again, in order of arrival."""
    ledger = CrashLedger()
    assert ledger.crashed(["a", "b", "c"]) == []
    assert ledger.boarding(["a", "b", "c"]) == ["a", "b", "c"]


def test_crashes_with_progress_in_between_never_add_up() -> None:
    """A request that gets a token after each crash goes on for ever."""
    ledger = CrashLedger()
    for _ in range(20):
        assert ledger.crashed(["a"]) == []
        assert ledger.boarding(["a"]) == ["a"]
        ledger.stepped(["a"])
        ledger.progressed("a")


class Engine:
    """Dies in the step in which `killer` boards, and seats `seats` requests; a step gives each rider a token."""

    def __init__(self, ledger: CrashLedger, killer: str, seats: int) -> None:
        self.ledger, self.killer, self.seats = ledger, killer, seats
        self.queue: list[str] = []

    def run(self, unfinished: list[str], steps: int) -> bool:
        """Steps until it dies (True), or for so many steps."""
        self.queue = self.ledger.boarding(unfinished)
        for _ in range(steps):
            riders = self.queue[: self.seats]
            if self.killer in riders:
                return True
            self.ledger.stepped(riders)
            for rider in riders:
                following = self.ledger.progressed(rider)
                if following is not None:
                    self.queue.append(following)
        return False


@pytest.mark.parametrize("position", range(4))
def test_the_request_that_kills_is_found_and_only_it_fails(position: int) -> None:
    """Wherever it stands among the others, the killer fails and the rest go on."""
    ledger, unfinished = CrashLedger(), ["a", "b", "c"]
    unfinished.insert(position, "k")
    engine, failed = Engine(ledger, "k", seats=8), []
    while engine.run(unfinished, steps=20):
        failed += ledger.crashed(unfinished)
        unfinished = [i for i in unfinished if i not in failed]
    assert failed == ["k"]
    assert sorted(engine.queue) == ["a", "b", "c"]


def test_killed_from_outside_those_in_the_queue_are_not_to_blame() -> None:
    """However often somebody kills the engine, requests that wait for a seat never fail, and all get their turn."""
    ledger, unfinished = CrashLedger(), [str(i) for i in range(12)]
    engine = Engine(ledger, "nobody", seats=2)
    for _ in range(50):
        engine.run(unfinished, steps=3)
        assert ledger.crashed(unfinished) == []
        unfinished = unfinished[1:] if len(unfinished) > 3 else unfinished


def test_an_engine_that_always_dies_is_not_their_fault_and_ends_all() -> None:
    """After a few crashes in a row without any token, everybody gets an answer."""
    ledger, unfinished = CrashLedger(), [str(i) for i in range(10)]
    crashes = 0
    while unfinished:
        failed = ledger.crashed(unfinished)
        crashes += 1
        unfinished = [i for i in unfinished if i not in failed]
    assert crashes == GIVE_UP_AFTER


def test_a_single_killer_fails_at_the_third_crash() -> None:
    """Alone, a request that never gets a token is tried twice more, then it fails."""
    ledger = CrashLedger()
    assert [ledger.crashed(["k"]) for _ in range(3)] == [[], [], ["k"]]


def test_a_killer_that_dies_between_chunks_is_found_too() -> None:
    """Steps of a prefill are no progress: the request fails at the third crash although it was computed."""
    ledger = CrashLedger()
    failed = []
    for _ in range(3):
        ledger.stepped(["k"])
        failed += ledger.crashed(["k"])
    assert failed == ["k"]


def test_a_newcomer_is_no_suspect() -> None:
    """Requests that come during a trial are sent, after the one on trial."""
    ledger = CrashLedger()
    ledger.crashed(["new", "a", "b"])
    ledger.progressed("new")
    ledger.crashed(["new", "a", "b"])
    assert ledger.boarding(["new", "a", "b"]) == ["a", "new"]


def test_the_next_suspect_follows_when_the_one_on_trial_leaves() -> None:
    """An abort of the request on trial, or of a held one, lets the others go on."""
    ledger = CrashLedger()
    ledger.crashed(["a", "b", "c"])
    ledger.crashed(["a", "b", "c"])
    assert ledger.ended("b") is None
    assert ledger.ended("a") == "c"
    assert ledger.ended("c") is None
