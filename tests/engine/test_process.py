"""Tests with a real child process: start, death, stuck steps, and the same bits after a SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.engine import process
from chairlift.engine.client import ProcessClient
from chairlift.engine.frontend import AsyncFrontend
from chairlift.engine.process import FrontEndGoneError, Port, run_loop
from chairlift.engine.stream import RequestStream
from chairlift.engine.types import EngineRequest, StepFrame
from chairlift.engine.wire import Abort, AddRequests, FrameEncoder, FrontSideDecoder, Shutdown
from chairlift.errors import EngineDeadError, ModelLoadError
from chairlift.sampling_params import SamplingParams
from fakes import CHILD_ENTRY, ByteTokenizer, ScriptedRunner, build, child_config, run_async, until

TOKENIZER = ByteTokenizer()


def submit(frontend: AsyncFrontend, i: int, **params: Any) -> RequestStream:
    params = {"max_tokens": 60, "seed": i, "logprobs": 1, **params}
    return frontend.submit(
        TOKENIZER.encode(f"prompt {i}" * (1 + i % 4)), SamplingParams(**params), request_id=f"r{i}"
    )


async def run_sixteen(options: dict[str, Any], disturb: Callable[[AsyncFrontend], Any] | None = None) -> Any:
    """(outputs of 16 streams, number of restarts, whether deltas joined to the texts)"""
    frontend = AsyncFrontend(ProcessClient(CHILD_ENTRY, child_config(**options)), TOKENIZER, step_timeout=5.0)
    await frontend.start()
    try:
        streams = [submit(frontend, i, n=1 + i % 2) for i in range(16)]

        async def consume(stream: RequestStream) -> Any:
            texts: dict[int, str] = {}
            async for delta in stream:
                texts[delta.index] = texts.get(delta.index, "") + delta.text
            outputs = await stream.collect()
            assert [output.text for output in outputs] == [texts[output.index] for output in outputs]
            return outputs

        tasks = [asyncio.create_task(consume(stream)) for stream in streams]
        if disturb is not None:
            await disturb(frontend)
        return await asyncio.gather(*tasks), frontend.metrics.engine_restarts
    finally:
        await frontend.close()


def test_p5_sigkill_under_sixteen_streams_changes_no_bit() -> None:
    """Ids, logprobs, texts and reasons of 16 sampled streams are equal with and without a SIGKILL half way."""

    async def kill(frontend: AsyncFrontend) -> None:
        await until(lambda: frontend.metrics.generation_tokens > 24 * 20)
        assert frontend._client.pid is not None
        os.kill(frontend._client.pid, signal.SIGKILL)
        await until(lambda: frontend.metrics.engine_restarts == 1)
        assert frontend.num_unfinished > 0

    calm, restarts = run_async(run_sixteen({}))
    assert restarts == 0
    killed, restarts = run_async(run_sixteen({"step_delay": 0.002}, kill))
    assert restarts == 1
    assert killed == calm


def test_p5_sigkill_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """An engine that dies between schedule and update, in its third step, is replaced; nothing changes."""
    calm, _ = run_async(run_sixteen({}))
    crashed, restarts = run_async(run_sixteen({"kill_at": 3, "once": str(tmp_path / "once")}))
    assert (crashed, restarts) == (calm, 1)


def test_p5_a_restarted_engine_has_the_sizes_of_the_first(tmp_path: Path) -> None:
    """With less memory free after a crash the engine still comes back as the same machine, every time, and a
    request that only just fitted the first one goes on."""

    async def main() -> None:
        log = tmp_path / "sizes"
        config = child_config(sizes=str(log), step_delay=0.001)
        frontend = AsyncFrontend(ProcessClient(CHILD_ENTRY, config), TOKENIZER)
        await frontend.start()
        first = frontend.info
        assert (first.num_kv_blocks, first.max_model_len) == (64, 1024)
        stream = frontend.submit([1] * 900, SamplingParams(max_tokens=124, seed=1), request_id="big")
        for restarts, seen in ((1, 5), (2, 10)):
            await until(lambda seen=seen: frontend.metrics.generation_tokens > seen)  # type: ignore[misc]
            assert frontend._client.pid is not None
            os.kill(frontend._client.pid, signal.SIGKILL)
            await until(lambda restarts=restarts: frontend.metrics.engine_restarts == restarts)  # type: ignore[misc]
        (output,) = await stream.collect()
        assert len(output.token_ids) == 124
        assert frontend.info == first
        asked = [json.loads(line) for line in log.read_text().splitlines()]
        assert asked == [[None, None], [64, 1024], [64, 1024]]
        await frontend.close()

    run_async(main())


def test_b61_a_step_that_never_returns(tmp_path: Path) -> None:
    """A stuck engine process is killed after step_timeout and replaced; nothing is lost."""

    async def main() -> None:
        config = child_config(block_at=4, once=str(tmp_path / "once"))
        frontend = AsyncFrontend(ProcessClient(CHILD_ENTRY, config), TOKENIZER, step_timeout=0.3)
        await frontend.start()
        stuck = frontend._client.pid
        (output,) = await submit(frontend, 1).collect()
        assert len(output.token_ids) == 60
        assert frontend._client.pid != stuck
        assert frontend.metrics.engine_restarts == 1
        await frontend.close()

    run_async(main())


def test_b61_a_step_that_always_raises_is_an_error_with_its_message() -> None:
    """The runner's exception crosses the border: clients get its class and text, and nobody hangs."""

    async def main() -> None:
        frontend = AsyncFrontend(ProcessClient(CHILD_ENTRY, child_config(poison="bad")), TOKENIZER)
        await frontend.start()
        bad = frontend.submit(TOKENIZER.encode("bad"), SamplingParams(), request_id="bad")
        with pytest.raises(EngineDeadError, match="RuntimeError: poison"):
            await bad.collect()
        (output,) = await submit(frontend, 1).collect()
        assert len(output.token_ids) == 60
        await frontend.close()

    run_async(main())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"fail": "no file at x.gguf"}, ModelLoadError, "no file at x.gguf"),
        ({"crash": True}, EngineDeadError, "exit code 9"),
        ({"engine": {"unknown": 1}}, EngineDeadError, "TypeError"),
    ],
)
def test_a_failed_start_says_why(options: dict[str, Any], error: type[Exception], match: str) -> None:
    """A ModelLoadError of the child is raised as one here; anything else as EngineDeadError with what is known."""

    async def main() -> None:
        client = ProcessClient(CHILD_ENTRY, child_config(**options))
        with pytest.raises(error, match=match):
            await client.start()
        assert client.pid is None
        client.close()

    run_async(main())


def test_spawn_needs_no_event_loop_and_close_needs_no_start() -> None:
    """`spawn` comes first and returns at once; a child that nobody waits for any more is gone after `close`."""
    client = ProcessClient(CHILD_ENTRY, child_config())
    client.spawn()
    pid = client.pid
    assert pid is not None
    client.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_close_ends_the_child_gently() -> None:
    """A ready engine stops by itself when told to, also with work in flight."""

    async def main() -> None:
        client = ProcessClient(CHILD_ENTRY, child_config())
        await client.start()
        child = client._process
        assert child is not None
        client.add_request(EngineRequest("r", [1], SamplingParams(max_tokens=1000), seed=1))
        await client.next_frame()
        client.close()
        assert child.returncode == 0

    run_async(main())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel kills orphans only on Linux")
def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    """When the front end is killed, an engine that is stuck in a step is killed too."""
    once = str(tmp_path / "once")
    program = f"""
import asyncio, os, sys
sys.path[:] = {sys.path!r}
from fakes import CHILD_ENTRY, ByteTokenizer, child_config
from chairlift.engine.client import ProcessClient
from chairlift.engine.types import EngineRequest
from chairlift.sampling_params import SamplingParams
async def main():
    client = ProcessClient(CHILD_ENTRY, child_config(block_at=2, once={once!r}))
    await client.start()
    client.add_request(EngineRequest("r", [1], SamplingParams(max_tokens=9), seed=1))
    await client.next_frame()
    print(client.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    pid = int(result.stdout)
    deadline = time.monotonic() + 10
    while _is_running(pid):
        assert time.monotonic() < deadline, "the engine outlived its front end"
        time.sleep(0.005)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_sigint_is_left_to_the_front_end() -> None:
    """Ctrl-C, which every process of a terminal gets, does not end the engine."""

    async def main() -> None:
        frontend = AsyncFrontend(ProcessClient(CHILD_ENTRY, child_config(step_delay=0.001)), TOKENIZER)
        await frontend.start()
        stream = submit(frontend, 1)
        assert frontend._client.pid is not None
        os.kill(frontend._client.pid, signal.SIGINT)
        await stream.collect()
        assert frontend.metrics.engine_restarts == 0
        await frontend.close()

    run_async(main())


# -- the child's loop, in a thread ---------------------------------------------------------------------------
class Child:
    """`run_loop` with a real engine in a thread, and the front end's end of its socket."""

    def __init__(self, runner: ScriptedRunner | None = None, **engine: Any) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(10)
        self.assembly = build(runner, **engine)
        self.port = Port(theirs)
        self.outcome: BaseException | None = None
        self._theirs = theirs
        self._encoder, self._decoder = FrameEncoder(), FrontSideDecoder()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            run_loop(self.assembly.engine, self.port, [])
        except BaseException as error:
            self.outcome = error

    def send(self, message: Any) -> None:
        self.ours.sendall(self._encoder.encode(message))

    def frames(self) -> list[StepFrame]:
        data = self.ours.recv(1 << 20)
        return [message for message in self._decoder.feed(data) if isinstance(message, StepFrame)]

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.ours.close()
        self._theirs.close()


def test_shutdown_ends_the_loop_at_once() -> None:
    """Shutdown is obeyed although requests are in flight."""
    child = Child()
    child.send(AddRequests([EngineRequest("r", [1], SamplingParams(max_tokens=1000), seed=1)]))
    child.frames()
    child.send(Shutdown())
    child.join()
    assert child.outcome is None


def test_a_closed_socket_ends_the_loop() -> None:
    """When the front end goes away, idle or busy, the loop ends."""
    for busy in (False, True):
        child = Child()
        if busy:
            child.send(AddRequests([EngineRequest("r", [1], SamplingParams(max_tokens=1000), seed=1)]))
            child.frames()
        child.ours.close()
        child.join()
        assert isinstance(child.outcome, FrontEndGoneError)


def test_a_slow_front_end_stops_the_engine_and_not_its_ears(monkeypatch: pytest.MonkeyPatch) -> None:
    """While frames pile up unread the engine pauses, and still obeys an abort sent meanwhile; none is lost."""
    monkeypatch.setattr(process, "_MAX_UNSENT_BYTES", 20_000)
    child = Child(max_model_len=100_000, num_kv_blocks=10_000)
    ids = [f"r{i}" for i in range(32)]
    params = SamplingParams(max_tokens=50_000)
    child.send(AddRequests([EngineRequest(i, [1], params, seed=1) for i in ids]))
    _wait_until_still(child.assembly.runner)
    steps = child.assembly.runner.num_calls
    child.send(Abort(ids))
    _wait(lambda: child.assembly.scheduler.num_running == 0)
    seen = 0
    while seen < steps + 1:
        seen += len(child.frames())
    child.send(Shutdown())
    child.join()
    assert seen == steps + 1
    assert child.assembly.runner.rows == {}


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _wait_until_still(runner: ScriptedRunner) -> None:
    """Until the runner has made no call for a while: long beside a step of microseconds."""
    last = [-1, 0]

    def still() -> bool:
        last[:] = [runner.num_calls, last[1] + 1] if runner.num_calls == last[0] else [runner.num_calls, 0]
        return last[1] > 100

    _wait(still)
