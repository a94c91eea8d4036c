"""Tests of the timeline ring."""

from __future__ import annotations

from chairlift.engine.timeline import Timeline
from chairlift.engine.types import StepFrame, StepRow


def frame(
    step: int, *rows: tuple[str, int, int], preempted: list[tuple[str, str]] | None = None
) -> StepFrame:
    return StepFrame(
        step=step,
        started_at=float(step),
        finished_at=step + 0.5,
        rows=[StepRow(*row) for row in rows],
        preempted=preempted or [],
    )


def test_chunks_stand_alone_and_decode_steps_are_one_run() -> None:
    """Each prefill chunk is an entry; adjacent decode steps are one; a gap starts another."""
    timeline = Timeline(10)
    timeline.arrived("r", ["r"], 30, 0.5)
    timeline.stepped(frame(1, ("r", 16, 0)))
    timeline.stepped(frame(2, ("r", 14, 16)))
    for step in (3, 4, 5, 7):
        timeline.stepped(frame(step, ("r", 1, 27 + step)))
    described = timeline.describe("r")
    assert described is not None
    (choice,) = described["choices"]
    runs = [(run["first_step"], run["last_step"], run["tokens_per_step"]) for run in choice["runs"]]
    assert runs == [(1, 1, 16), (2, 2, 14), (3, 5, 1), (7, 7, 1)]
    assert (choice["runs"][2]["started_at"], choice["runs"][2]["finished_at"]) == (3.0, 5.5)
    assert (choice["arrived_at"], choice["first_scheduled_at"]) == (0.5, 1.0)


def test_tokens_preemptions_restarts_and_the_end() -> None:
    """Everything that happens to a choice is in its record."""
    timeline = Timeline(10)
    timeline.arrived("a", ["a"], 3, 0.0)
    timeline.arrived("r", ["r#0"], 3, 0.0)
    timeline.stepped(frame(4, preempted=[("r#0", "kv blocks ran out for a"), ("gone", "x")]))
    timeline.got_tokens("r#0", 1, 16, 5.0)
    timeline.got_tokens("r#0", 2, 0, 6.0)
    timeline.restarted("r#0")
    timeline.finished("r#0", "r", "length", 7.0)
    described = timeline.describe("r")
    assert described is not None
    (choice,) = described["choices"]
    assert choice["preemptions"] == [(4, "kv blocks ran out for a")]
    assert (choice["first_token_at"], choice["num_cached_tokens"], choice["num_output_tokens"]) == (
        5.0,
        16,
        3,
    )
    assert (choice["num_restarts"], choice["waited_behind"]) == (1, 1)
    assert (choice["finish_reason"], choice["finished_at"]) == ("length", 7.0)


def test_the_ring_forgets_the_oldest_finished() -> None:
    """At most `history` finished requests are kept, unfinished ones always, and nothing else leaks."""
    timeline = Timeline(3)
    timeline.arrived("live", ["live"], 1, 0.0)
    for i in range(20):
        ids = [f"r{i}#0", f"r{i}#1"]
        timeline.arrived(f"r{i}", ids, 1, 0.0)
        for choice_id in ids:
            timeline.finished(choice_id, f"r{i}", "stop", 1.0)
    assert timeline.describe("r16") is None
    assert all(timeline.describe(i) is not None for i in ("live", "r17", "r18", "r19"))
    assert (len(timeline._requests), len(timeline._live), len(timeline._finished)) == (4, 1, 3)


def test_a_request_id_that_comes_again() -> None:
    """A request that reuses the id of a finished one replaces its record; the ring stays consistent."""
    timeline = Timeline(2)
    for when in (1.0, 2.0, 3.0):
        timeline.arrived("same", ["same"], 1, when)
        timeline.finished("same", "same", "stop", when)
    described = timeline.describe("same")
    assert described is not None
    assert [choice["arrived_at"] for choice in described["choices"]] == [3.0]
    timeline.arrived("same", ["same"], 1, 4.0)
    for i in range(3):
        timeline.arrived(f"r{i}", [f"r{i}"], 1, 0.0)
        timeline.finished(f"r{i}", f"r{i}", "stop", 1.0)
    assert timeline.describe("same") is not None  # it is unfinished again
