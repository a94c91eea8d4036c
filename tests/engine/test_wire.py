"""Tests of the frames between front end and engine."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.config import EngineConfig, ModelConfig
from chairlift.core.messages import TokenLogprobs
from chairlift.engine import wire
from chairlift.engine.types import EngineInfo, EngineRequest, StepFrame, StepRow, StepStats, TokenUpdate
from chairlift.engine.wire import (
    Abort,
    AddRequests,
    EngineSideDecoder,
    Failed,
    FrameEncoder,
    FromEngine,
    FrontSideDecoder,
    Ready,
    Shutdown,
    Start,
    ToEngine,
    WireError,
)
from chairlift.sampling_params import SamplingParams

REQUEST = EngineRequest(
    request_id="r1",
    prompt_token_ids=[1, 2, 3],
    sampling_params=SamplingParams(
        temperature=0.5, logit_bias={7: -100.0}, stop_token_ids=[9], seed=-5, logprobs=2
    ),
    seed=2**64 - 1,
    branch=3,
    eos_token_ids=(2,),
    output_token_ids=[4],
)
TO_ENGINE: list[ToEngine] = [
    Start("a:b", EngineConfig(model=ModelConfig(model="m.gguf"), seed=3)),
    AddRequests([REQUEST]),
    Abort(["r1", "r2#0"]),
    Shutdown(),
]
FROM_ENGINE: list[FromEngine] = [
    Ready(EngineInfo("m", 10, 20, 30, 16, 4, 64, 8, "f16", "cpu", {"isa": "avx2"}, ["note"])),
    StepFrame(
        step=3,
        started_at=1.5,
        finished_at=2.5,
        updates=[
            TokenUpdate("r1", [5], "stop", 9, [TokenLogprobs(5, -0.5, 1, (5, 6), (-0.5, float("-inf")))]),
            TokenUpdate("r2", [], "error", error="too long", error_code="ContextLengthError"),
        ],
        stats=StepStats(num_running=1),
        rows=[StepRow("r1", 4, 0, True)],
        preempted=[("r3", "kv blocks ran out for r1")],
    ),
    Failed("no such file", "ModelLoadError"),
]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_messages_survive_any_cut_of_the_stream(chunk: int) -> None:
    """Every message comes out as it went in, however the bytes are cut."""
    encoder = FrameEncoder()
    pairs: list[tuple[Any, Any]] = [(TO_ENGINE, EngineSideDecoder()), (FROM_ENGINE, FrontSideDecoder())]
    for messages, decoder in pairs:
        data = b"".join(bytes(encoder.encode(message)) for message in messages)
        decoded: list[Any] = []
        for start in range(0, len(data), chunk):
            decoded += decoder.feed(data[start : start + chunk])
        assert decoded == messages


def test_a_frame_over_the_limit_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side sends or believes a length over the limit, and the message has both numbers."""
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 50)
    with pytest.raises(WireError, match="the limit is 50"):
        FrameEncoder().encode(Abort(["x" * 60]))
    with pytest.raises(WireError, match="4294967295 bytes; the limit is 50"):
        EngineSideDecoder().feed(b"\xff\xff\xff\xff")


@given(st.binary(max_size=40))
def test_garbage_is_a_wire_error(payload: bytes) -> None:
    """Bytes that are no message raise WireError, and nothing else."""
    frame = len(payload).to_bytes(4, "little") + payload
    for decoder in (EngineSideDecoder(), FrontSideDecoder()):
        with contextlib.suppress(WireError):
            decoder.feed(frame)


def test_parameters_are_checked_again_when_decoded() -> None:
    """A value out of range does not get into the engine by the wire either."""
    frame = bytes(FrameEncoder().encode(AddRequests([REQUEST])))
    data = frame.replace(b"temperature\xcb\x3f\xe0", b"temperature\xcb\xbf\xe0")  # 0.5 -> -0.5
    assert data != frame
    with pytest.raises(Exception, match="temperature"):
        EngineSideDecoder().feed(data)
