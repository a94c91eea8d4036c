"""Tests of the step log."""

from __future__ import annotations

import io
import json
from pathlib import Path

from chairlift.engine.client import InProcessClient
from chairlift.engine.frontend import AsyncFrontend
from chairlift.engine.offline import OfflineFrontend, OfflineRequest
from chairlift.engine.step_log import StepLog
from chairlift.sampling_params import SamplingParams
from fakes import ByteTokenizer, FakeAsyncClient, build, run_async


def check(lines: list[str]) -> None:
    """The rows of all steps together are the request's tokens, in order of time."""
    steps = [json.loads(line) for line in lines]
    rows = [row for step in steps for row in step["rows"]]
    assert rows == [["r", 16, 0, True], ["r", 14, 16, False], ["r", 1, 30, False], ["r", 1, 31, False]]
    times = [time for step in steps for time in (step["started_at"], step["finished_at"])]
    assert times == sorted(times)
    assert [end for step in steps for end in step["finished"]] == [["r", "length"]]
    assert steps[0]["stats"]["num_running"] == 1


def test_every_step_is_a_line_offline() -> None:
    """`OfflineFrontend` writes one JSON object per step to a file that the caller owns."""
    file = io.BytesIO()
    client = InProcessClient(build(max_num_batched_tokens=16).engine)
    frontend = OfflineFrontend(client, ByteTokenizer(), step_log=StepLog(file))
    frontend.run([OfflineRequest("r", None, [7] * 30, SamplingParams(max_tokens=3))])
    check(file.getvalue().decode().splitlines())


def test_every_step_is_a_line_online(tmp_path: Path) -> None:
    """`AsyncFrontend` does so too, and closes the file that the log opened."""
    path = tmp_path / "steps.jsonl"

    async def main() -> None:
        client = FakeAsyncClient(lambda: build(max_num_batched_tokens=16).engine)
        frontend = AsyncFrontend(client, ByteTokenizer(), step_log=StepLog(path))
        await frontend.start()
        await frontend.submit([7] * 30, SamplingParams(max_tokens=3), request_id="r").collect()
        timeline = frontend.timeline("r")
        assert timeline is not None
        assert timeline["choices"][0]["num_output_tokens"] == 3
        await frontend.close()

    run_async(main())
    check(path.read_text().splitlines())
