"""Tests of the crash ledger."""

from __future__ import annotations

from chairlift.engine.recovery import FAIL_AFTER, GIVE_UP_AFTER, CrashLedger


def sent(ledger: CrashLedger, ids: list[str]) -> list[str]:
    return [i for i in ids if not ledger.is_held(i)]


def test_one_crash_costs_nobody_anything() -> None:
    """After a first crash every request is sent again."""
    ledger = CrashLedger()
    assert ledger.crashed(["a", "b", "c"]) == []
    assert sent(ledger, ["a", "b", "c"]) == ["a", "b", "c"]


def test_crashes_with_progress_in_between_never_add_up() -> None:
    """A request that gets a token after each crash goes on for ever."""
    ledger = CrashLedger()
    for _ in range(20):
        assert ledger.crashed(["a"]) == []
        assert sent(ledger, ["a"]) == ["a"]
        ledger.progressed("a")


def test_the_request_that_kills_is_found_and_only_it_fails() -> None:
    """From the second crash on suspects are tried one at a time; the killer fails and the rest go on."""
    ledger, unfinished, killer = CrashLedger(), ["a", "b", "k", "c"], "k"
    failed: list[str] = []
    engine = list(unfinished)
    for _ in range(20):
        if killer in engine:
            failed += ledger.crashed(unfinished)
            unfinished = [i for i in unfinished if i not in failed]
            engine = sent(ledger, unfinished)
            continue
        for request_id in list(engine):
            following = ledger.progressed(request_id)
            engine += [following] if following else []
    assert failed == ["k"]
    assert sorted(engine) == ["a", "b", "c"]


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
    """Alone, a request that never gets a token fails after FAIL_AFTER crashes."""
    ledger = CrashLedger()
    assert [ledger.crashed(["k"]) for _ in range(FAIL_AFTER)] == [[]] * (FAIL_AFTER - 1) + [["k"]]


def test_a_newcomer_is_no_suspect() -> None:
    """Requests that come during a trial are sent at once."""
    ledger = CrashLedger()
    ledger.crashed(["a", "b"])
    ledger.crashed(["a", "b"])
    assert sent(ledger, ["a", "b", "new"]) == ["a", "new"]


def test_the_next_suspect_follows_when_the_one_on_trial_leaves() -> None:
    """An abort of the request on trial, or of a held one, lets the others go on."""
    ledger = CrashLedger()
    ledger.crashed(["a", "b", "c"])
    ledger.crashed(["a", "b", "c"])
    assert ledger.ended("b") is None
    assert ledger.ended("a") == "c"
    assert ledger.ended("c") is None
