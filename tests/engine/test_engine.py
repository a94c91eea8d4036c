"""Tests of the step loop's body, in process, with a scripted runner."""

from __future__ import annotations

import pytest

from chairlift.engine.client import InProcessClient
from chairlift.engine.engine import Engine
from chairlift.engine.types import EngineRequest, StepFrame, TokenUpdate
from chairlift.errors import EngineDeadError
from chairlift.sampling_params import SamplingParams
from fakes import EOS, ScriptedRunner, build, ids_of


def request(
    request_id: str, prompt: str = "Hi", output: list[int] | None = None, **params: object
) -> EngineRequest:
    return EngineRequest(
        request_id,
        ids_of(prompt),
        SamplingParams(**params),  # type: ignore[arg-type]
        seed=1,
        eos_token_ids=(EOS,),
        output_token_ids=output or [],
    )


def drain(engine: Engine) -> list[StepFrame]:
    frames = []
    while engine.has_unfinished():
        frame = engine.step()
        assert frame is not None
        frames.append(frame)
    return frames


def tokens(frames: list[StepFrame], request_id: str) -> list[int]:
    return [
        i for frame in frames for u in frame.updates if u.request_id == request_id for i in u.new_token_ids
    ]


def updates(frames: list[StepFrame]) -> list[TokenUpdate]:
    return [update for frame in frames for update in frame.updates]


def test_a_request_runs_to_its_end() -> None:
    """Tokens come one a step, the last update says why it ended, and then there is nothing to do."""
    assembly = build(ScriptedRunner({"Hi": "Yo!"}))
    assembly.engine.add_request(request("r"))
    frames = drain(assembly.engine)
    assert tokens(frames, "r") == [*b"Yo!", EOS]
    assert updates(frames)[-1].finish_reason == "stop"
    assert assembly.engine.step() is None
    assert assembly.runner.rows == {}


def test_a_frame_records_its_step() -> None:
    """Rows, counts and times of each step are in its frame."""
    assembly = build(max_num_batched_tokens=32)
    assembly.engine.add_request(request("r", "x" * 40, max_tokens=2))
    first, second, third, last = drain(assembly.engine)
    assert [(row.request_id, row.num_scheduled_tokens, row.is_new) for row in first.rows] == [("r", 32, True)]
    assert [(row.num_scheduled_tokens, row.num_computed_tokens) for row in second.rows] == [(8, 32)]
    assert [(row.num_scheduled_tokens, row.num_computed_tokens) for row in third.rows] == [(1, 40)]
    assert (first.stats.num_running, last.stats.num_running) == (1, 0)
    assert first.stats.num_free_blocks == 256 - 2
    assert first.started_at <= first.finished_at <= second.started_at
    assert last.rows == []


def test_b01_what_can_never_run_is_refused_in_the_next_frame() -> None:
    """A refusal is an update with the error's class and numbers; the others are served."""
    assembly = build(num_kv_blocks=16, max_model_len=1024)
    assembly.engine.add_request(request("big", "x" * 400, max_tokens=8))
    assembly.engine.add_request(request("small", max_tokens=3))
    frames = drain(assembly.engine)
    refusal = updates(frames)[0]
    assert (refusal.request_id, refusal.finish_reason) == ("big", "error")
    assert refusal.error_code == "PoolTooSmallError"
    assert "16" in (refusal.error or "")
    assert len(tokens(frames, "small")) == 3


def test_a_refusal_alone_is_something_to_do() -> None:
    """With nothing else in flight the refusal still gets its frame."""
    assembly = build(max_model_len=16)
    assembly.engine.add_request(request("long", "x" * 99))
    assert assembly.engine.has_unfinished()
    frame = assembly.engine.step()
    assert frame is not None
    assert frame.updates[0].error_code == "ContextLengthError"
    assert not assembly.engine.has_unfinished()


def test_resuming_goes_on_with_the_same_tokens() -> None:
    """A request sent with the tokens it has ends as if it had never been interrupted."""
    whole = build()
    whole.engine.add_request(request("r", max_tokens=20))
    expected = tokens(drain(whole.engine), "r")
    resumed = build()
    resumed.engine.add_request(request("r", output=expected[:7], max_tokens=20))
    assert tokens(drain(resumed.engine), "r") == expected[7:]


def test_a_full_queue_never_refuses_here() -> None:
    """The front end decides about the queue; what it sends is taken, or a crash would cost requests."""
    assembly = build(max_num_waiting=1)
    for i in range(10):
        assembly.engine.add_request(request(f"r{i}", max_tokens=1))
    assert {u.finish_reason for u in updates(drain(assembly.engine))} == {"length"}


def test_b13_an_abort_frees_the_blocks_within_a_step() -> None:
    """Waiting or running, an aborted request is gone in the next frame, and nothing is sent for it."""
    assembly = build(max_num_seqs=1)
    engine = assembly.engine
    for name in ("running", "waiting"):
        engine.add_request(request(name, max_tokens=100))
    engine.step()
    engine.abort(["waiting"])
    frame = engine.step()
    assert frame is not None
    assert frame.stats.num_waiting == 0
    engine.abort(["running", "unknown"])
    frame = engine.step()
    assert frame is not None
    assert frame.updates == []
    assert (frame.stats.num_running, frame.stats.num_free_blocks) == (0, 256)
    assert not engine.has_unfinished()
    assert assembly.runner.rows == {}
    assembly.scheduler.check_integrity()


def test_a_failed_step_is_raised_and_ends_the_engine() -> None:
    """The runner's exception reaches the caller; afterwards nobody waits: every call says the engine is dead."""
    assembly = build(ScriptedRunner(raise_at=2))
    client = InProcessClient(assembly.engine)
    client.add_request(request("r", max_tokens=5))
    client.step()
    with pytest.raises(RuntimeError, match="scripted failure"):
        client.step()
    with pytest.raises(EngineDeadError, match="scripted failure"):
        client.step()
    with pytest.raises(EngineDeadError):
        client.add_request(request("s"))
    client.abort(["r"])
    client.close()
    assert assembly.runner.closed


def test_b05_preemption_changes_no_token() -> None:
    """A pool too small for all gives the same tokens as a large one, and preemptions did happen."""
    results = []
    for blocks in (256, 20):
        assembly = build(num_kv_blocks=blocks, max_num_seqs=8)
        for i in range(8):
            assembly.engine.add_request(request(f"r{i}", f"prompt {i}" * 4, max_tokens=64))
        frames = drain(assembly.engine)
        results.append([tokens(frames, f"r{i}") for i in range(8)])
        preempted = [p for frame in frames for p in frame.preempted]
        assert bool(preempted) == (blocks == 20)
        assert frames[-1].stats.num_preemptions_total == len(preempted)
    assert results[0] == results[1]


def test_b36_max_tokens_zero_computes_the_prompt_only() -> None:
    """With max_tokens 0 all chunks run, prompt logprobs come, and there is no token."""
    assembly = build(max_num_batched_tokens=16)
    assembly.engine.add_request(request("r", "x" * 40, max_tokens=0, prompt_logprobs=1))
    frames = drain(assembly.engine)
    (update,) = updates(frames)
    assert (update.new_token_ids, update.finish_reason) == ([], "length")
    assert len(update.prompt_logprobs or []) == 39
    assert assembly.runner.num_tokens == 0
