"""Tests of the asynchronous front end over an engine that steps in the same event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chairlift.engine.frontend import AsyncFrontend
from chairlift.engine.stream import RequestStream
from chairlift.engine.types import CompletionDelta, TokenUpdate
from chairlift.errors import (
    ContextLengthError,
    EngineDeadError,
    InvalidParameterError,
    ModelLoadError,
    OverloadedError,
    PoolTooSmallError,
    ServerError,
)
from chairlift.sampling_params import SamplingParams
from fakes import (
    EOS,
    EOS_TEXT,
    Assembly,
    ByteTokenizer,
    FakeAsyncClient,
    ScriptedRunner,
    build,
    run_async,
    until,
)

TOKENIZER = ByteTokenizer()


class Setup:
    """A started front end, its client, and every engine that was made."""

    def __init__(self, make: Callable[[int], Assembly], *, paused: bool = False, **options: Any) -> None:
        self.assemblies: list[Assembly] = []

        def make_engine() -> Any:
            self.assemblies.append(make(len(self.assemblies)))
            return self.assemblies[-1].engine

        self.client = FakeAsyncClient(make_engine, paused=paused)
        self.frontend = AsyncFrontend(self.client, TOKENIZER, **options)
        self.count = 0

    @property
    def now(self) -> Assembly:
        return self.assemblies[-1]

    def submit(self, prompt: str = "Hi", **params: Any) -> RequestStream:
        self.count += 1
        return self.frontend.submit(
            TOKENIZER.encode(prompt), SamplingParams(**params), request_id=f"r{self.count}"
        )


@asynccontextmanager
async def started(
    make: Callable[[int], Assembly] | Assembly | None = None, *, paused: bool = False, **options: Any
) -> AsyncIterator[Setup]:
    assembly = make if isinstance(make, Assembly) else None
    setup = Setup((lambda _: assembly or build()) if not callable(make) else make, paused=paused, **options)
    await setup.frontend.start()
    try:
        yield setup
    finally:
        await setup.frontend.close()


async def text_of(stream: RequestStream) -> str:
    return "".join([delta.text async for delta in stream])


def one_line(outputs: list[Any]) -> str:
    (output,) = outputs
    return str(output.text)


# -- streams -------------------------------------------------------------------------------------------------
def test_deltas_join_to_the_text_and_usage_counts() -> None:
    """Joined deltas are the text, one finish reason comes last, and usage has all three counts."""

    async def main() -> None:
        async with started(build(ScriptedRunner({"x" * 40: "hello"}))) as setup:
            for cached in (0, 32):
                stream = setup.submit("x" * 40)
                deltas = [delta async for delta in stream]
                assert "".join(delta.text for delta in deltas) == "hello"
                assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]
                usage = stream.usage
                assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (40, 6, cached)

    run_async(main())


def test_a_slow_consumer_gets_everything_in_fewer_deltas() -> None:
    """Deltas that nobody reads are joined, with their ids and logprobs; nothing is lost."""

    async def main() -> None:
        async with started() as setup:
            stream = setup.submit(max_tokens=50, logprobs=1)
            await until(lambda: stream.finished)
            (delta,) = [delta async for delta in stream]
            assert len(delta.token_ids) == len(delta.text) == len(delta.logprobs or []) == 50
            assert [entry.token_id for entry in delta.logprobs or []] == delta.token_ids
            assert delta.finish_reason == "length"

    run_async(main())


def test_a_first_token_at_second_zero_counts() -> None:
    """A clock that starts at 0 is a clock: the time per token is measured from a first token at 0.0 too."""

    async def main() -> None:
        seconds = 0.0
        async with started(paused=True, clock=lambda: seconds) as setup:
            stream = setup.submit(max_tokens=3)
            setup.client.allow()
            await until(lambda: setup.frontend.metrics.generation_tokens == 1)
            seconds = 4.0
            setup.client.resume()
            await stream.collect()
            per_token = setup.frontend.metrics.time_per_output_token
            assert (sum(per_token.counts), per_token.total) == (1, 2.0)

    run_async(main())


def test_b30_choices_are_distinct_and_all_come() -> None:
    """n=8 gives eight choices with one seed each its branch; each index ends once; choices differ."""

    async def main() -> None:
        async with started() as setup:
            first, again = (setup.submit("Sea", n=8, seed=5, max_tokens=20) for _ in range(2))
            deltas: list[CompletionDelta] = [delta async for delta in first]
            ends = [delta.index for delta in deltas if delta.finish_reason]
            assert sorted(ends) == list(range(8))
            texts = [output.text for output in await first.collect()]
            assert len(set(texts)) == 8
            assert [output.text for output in await again.collect()] == texts
            assert first.usage.prompt_tokens == 3
            assert first.usage.completion_tokens == 160

    run_async(main())


def test_b30_unseeded_requests_get_seeds_of_their_own() -> None:
    """Eight calls without a seed board with eight different 64-bit seeds; with an engine seed they repeat."""

    async def seeds(seed: int | None) -> list[int]:
        async with started(seed=seed) as setup:
            for stream in [setup.submit(max_tokens=1) for _ in range(8)]:
                await stream.collect()
            return setup.now.runner.seeds

    free, fixed, fixed_again = (run_async(seeds(seed)) for seed in (None, 7, 7))
    assert len(set(free)) == 8
    assert all(0 <= seed < 2**64 for seed in free)
    assert fixed == fixed_again != free


def test_a_choice_that_ends_early_leaves_the_others_streaming() -> None:
    """After one choice has hit its stop string the rest go on to their ends."""

    async def main() -> None:
        async with started() as setup:
            whole = [output.text for output in await setup.submit(n=3, seed=1, max_tokens=30).collect()]
            stop = whole[1][4:8]
            outputs = await setup.submit(n=3, seed=1, max_tokens=30, stop=[stop]).collect()
            assert [o.text for o in outputs] == [whole[0], whole[1].split(stop)[0], whole[2]]
            assert [o.finish_reason for o in outputs] == ["length", "stop", "length"]

    run_async(main())


def test_b20_a_stop_string_cuts_the_stream_and_the_work() -> None:
    """No character of the stop string is streamed, and the engine computes no further."""

    async def main() -> None:
        async with started(build(ScriptedRunner({"a": "one two three four five six seven"}))) as setup:
            stream = setup.submit("a", stop=["o thr"], max_tokens=100)
            assert await text_of(stream) == "one tw"
            assert stream.usage.completion_tokens == len("one two thr")
            await until(lambda: setup.now.scheduler.blocks.pool.num_used == 0)
            assert setup.now.runner.num_tokens <= len("one two thr") + 1

    run_async(main())


def test_b26_special_token_stop_string() -> None:
    """A stop string that is a special token ends the text although such tokens are not printed."""

    async def main() -> None:
        async with started(build(ScriptedRunner({"a": [*b"hi", EOS, *b"more"]}))) as setup:
            (output,) = await setup.submit("a", stop=[EOS_TEXT], ignore_eos=True, max_tokens=9).collect()
            assert (output.text, output.finish_reason, output.stop_reason) == ("hi", "stop", EOS_TEXT)

    run_async(main())


def test_b36_max_tokens_zero_and_prompt_logprobs() -> None:
    """max_tokens 0 brings the prompt's logprobs over all chunks and no token at all."""

    async def main() -> None:
        async with started(build(max_num_batched_tokens=16)) as setup:
            stream = setup.submit("x" * 40, max_tokens=0, prompt_logprobs=1)
            (output,) = await stream.collect()
            assert (output.text, output.token_ids, output.finish_reason) == ("", [], "length")
            assert stream.prompt_logprobs is not None
            assert stream.prompt_logprobs[0] is None
            assert len(stream.prompt_logprobs) == 40
            assert stream.usage.completion_tokens == 0

    run_async(main())


def test_wait_says_whether_something_came() -> None:
    """`wait` returns False after its timeout, loses nothing, and True when a delta is there."""

    async def main() -> None:
        async with started(paused=True) as setup:
            stream = setup.submit(max_tokens=2)
            assert not await stream.wait(0.01)
            setup.client.allow(1)
            assert await stream.wait(10)
            assert (await anext(stream)).finish_reason is None
            setup.client.resume()
            assert (await anext(stream)).finish_reason == "length"
            assert await stream.wait(0)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run_async(main())


def test_two_consumers_of_a_stream_are_an_error() -> None:
    """A stream has one reader; a second one is told so instead of stealing deltas."""

    async def main() -> None:
        async with started(paused=True) as setup:
            stream = setup.submit()
            first = asyncio.create_task(stream.wait())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="two consumers"):
                await stream.wait()
            await stream.abort()
            assert await first

    run_async(main())


def test_ids_in_use_get_a_suffix() -> None:
    """Two unfinished requests with one id don't collide."""

    async def main() -> None:
        async with started() as setup:
            streams = [
                setup.frontend.submit([1], SamplingParams(max_tokens=2), request_id="same") for _ in range(3)
            ]
            assert [stream.request_id for stream in streams] == ["same", "same~2", "same~3"]
            params = SamplingParams(max_tokens=2, n=2)
            streams.append(setup.frontend.submit([1], SamplingParams(max_tokens=2), request_id="x#1"))
            streams.append(
                setup.frontend.submit([1], params, request_id="x")
            )  # its second choice would be x#1
            assert streams[-1].request_id.startswith("x~")
            assert [len(await text_of(stream)) for stream in streams] == [2, 2, 2, 2, 4]

    run_async(main())


def test_b13_frames_about_an_aborted_request_never_reach_its_namesake() -> None:
    """A client that aborts and tries again with the same id gets only tokens of its second request."""

    async def main() -> None:
        scripts = {"first": "AAAAAAAA", "second": "BBBB"}
        async with started(build(ScriptedRunner(scripts)), paused=True) as setup:

            def submit(prompt: str) -> RequestStream:
                return setup.frontend.submit(TOKENIZER.encode(prompt), SamplingParams(), request_id="same")

            first = submit("first")
            setup.client.allow(1)
            await anext(first)
            late = setup.now.engine.step()  # a frame that is on its way while the client gives up
            await first.abort()
            second = submit("second")
            assert late is not None
            setup.frontend._take(late)
            setup.client.resume()
            assert await text_of(second) == "BBBB"
            again = submit("second")
            assert again.request_id != first.request_id
            await again.collect()

    run_async(main())


# -- refusals ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ("", {}, InvalidParameterError),
        ("x" * 64, {}, ContextLengthError),
        ("x" * 60, {"max_tokens": 5}, ContextLengthError),
        ("x" * 40, {"max_tokens": 20}, PoolTooSmallError),
        ("x", {"logit_bias": {300: 1}}, InvalidParameterError),
        ("x", {"min_tokens": 100, "max_tokens": None}, InvalidParameterError),
        ("x", {"stop": ["y"], "detokenize": False}, InvalidParameterError),
    ],
)
def test_what_can_never_run_is_refused_before_any_work(
    prompt: str, params: dict[str, Any], error: type[Exception]
) -> None:
    """`submit` itself raises, nothing was counted or sent, and the next request is served."""

    async def main() -> None:
        async with started(build(max_model_len=64, num_kv_blocks=3)) as setup:
            with pytest.raises(error):
                setup.submit(prompt, **params)
            assert setup.frontend.num_unfinished == 0
            assert setup.now.runner.num_calls == 0
            assert setup.frontend.metrics.prompt_tokens == 0
            assert len(await text_of(setup.submit(max_tokens=3))) == 3

    run_async(main())


def test_the_queue_limit_counts_every_choice() -> None:
    """Beyond max_num_seqs + max_num_waiting choices requests are refused, and are taken again once it drains."""

    async def main() -> None:
        async with started(build(max_num_seqs=2, max_num_waiting=3), paused=True) as setup:
            streams = [setup.submit(n=4, max_tokens=1)]
            with pytest.raises(OverloadedError, match="max-num-waiting") as refusal:
                setup.submit(n=2, max_tokens=1)
            assert refusal.value.retry_after == 1.0
            streams.append(setup.submit(max_tokens=1))
            setup.client.resume()
            for stream in streams:
                await stream.collect()
            await setup.submit(n=5, max_tokens=1).collect()

    run_async(main())


def test_a_refusal_by_the_engine_reaches_the_stream() -> None:
    """What only the engine refuses (here an id that it still has) is raised by the iteration, as its class."""

    async def main() -> None:
        async with started() as setup:
            stream = setup.submit("x" * 20, max_tokens=5)
            engine = setup.now.engine
            engine._refused.append(
                TokenUpdate(stream.request_id, [], "error", error="no room", error_code="PoolTooSmallError")
            )
            with pytest.raises(PoolTooSmallError, match="no room"):
                await stream.collect()
            assert setup.frontend.num_unfinished == 0
            await until(lambda: not setup.now.engine.has_unfinished())

    run_async(main())


def test_a_bug_in_detokenizing_ends_one_stream_only() -> None:
    """An exception while turning tokens into text is an error for that request; the others go on."""

    class Broken(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            if token_id == ord("!"):
                raise ValueError("broken table")
            return super().token_bytes(token_id)

    async def main() -> None:
        client = FakeAsyncClient(lambda: build(ScriptedRunner({"a": "x!y", "b": "fine"})).engine)
        frontend = AsyncFrontend(client, Broken())
        await frontend.start()
        bad = frontend.submit([ord("a")], SamplingParams(), request_id="a")
        good = frontend.submit([ord("b")], SamplingParams(), request_id="b")
        with pytest.raises(ServerError, match="broken table"):
            await bad.collect()
        assert await text_of(good) == "fine"
        await frontend.close()

    run_async(main())


# -- leaving early -------------------------------------------------------------------------------------------
def test_b62_leaving_the_block_frees_the_request_within_a_step() -> None:
    """An early exit from `async with`, by break, error or cancellation, aborts in the engine's next step."""

    async def consume(stream: RequestStream) -> None:
        async with stream:
            async for _ in stream:
                pass

    async def main() -> None:
        async with started(build(max_num_seqs=1), paused=True) as setup:
            running = asyncio.create_task(consume(setup.submit(max_tokens=500, n=2)))
            waiting = [asyncio.create_task(consume(setup.submit(max_tokens=500))) for _ in range(10)]
            setup.client.allow(3)
            await until(lambda: setup.now.runner.num_calls == 3)
            for task in (running, *waiting):
                task.cancel()
            await asyncio.gather(running, *waiting, return_exceptions=True)
            assert setup.frontend.num_unfinished == 0
            setup.client.allow(1)
            await until(lambda: not setup.now.engine.has_unfinished())
            assert setup.now.runner.num_calls == 4
            assert setup.now.runner.rows == {}
            assert setup.now.scheduler.blocks.pool.num_used == 0
            assert setup.now.engine.stats().num_waiting == 0
            setup.client.resume()
            assert len(await text_of(setup.submit(max_tokens=3))) == 3

    run_async(main())


@pytest.mark.parametrize("how", ["abort", "anext", "wait"])
def test_b62_abort_and_cancellation_without_the_block(how: str) -> None:
    """`abort`, or cancelling whoever waits, drops the request; its output so far stays readable."""

    async def main() -> None:
        async with started(paused=True) as setup:
            stream = setup.submit(max_tokens=500)
            if how == "abort":
                await stream.abort()
            else:
                task = asyncio.ensure_future(anext(stream) if how == "anext" else stream.wait())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert setup.frontend.num_unfinished == 0
            assert [delta.finish_reason async for delta in stream] == ["abort"]
            await stream.abort()  # a second time does no harm

    run_async(main())


def test_b13_blocks_return_whenever_requests_are_cut() -> None:
    """Requests cut while queued, between chunks, while decoding and while preempted leave no block behind."""

    async def main() -> None:
        assembly = build(max_num_seqs=4, num_kv_blocks=24, max_num_batched_tokens=32)
        async with started(assembly, paused=True) as setup:
            streams = [
                setup.submit(f"{i:02}" + "x" * (i * 7 % 90), max_tokens=90, n=1 + i % 3) for i in range(40)
            ]
            preempted = 0
            for i, stream in enumerate(streams):
                setup.client.allow(5)
                calls = assembly.runner.num_calls
                await until(lambda calls=calls: assembly.runner.num_calls >= calls + 5)
                if i % 2:
                    await stream.abort()
                preempted = assembly.scheduler.stats().num_preemptions
            setup.client.resume()
            for i, stream in enumerate(streams):
                outputs = await stream.collect()
                assert {o.finish_reason for o in outputs} <= ({"abort", "length"} if i % 2 else {"length"})
            assert preempted > 0
            await until(lambda: not assembly.engine.has_unfinished())
            assert assembly.scheduler.blocks.pool.num_used == 0
            assembly.scheduler.check_integrity()
            await setup.submit("y" * 300, max_tokens=24 * 16 - 300 + 1).collect()  # as large as the pool

    run_async(main())


# -- when the engine dies ------------------------------------------------------------------------------------
def test_p5_a_death_is_a_pause_and_changes_no_bit() -> None:
    """Sixteen streams with sampling, stops and logprobs end the same with and without crashes on the way."""

    async def outputs(deaths: int) -> list[Any]:
        async with started(lambda _: build(max_num_seqs=8), paused=True) as setup:
            streams = [
                setup.submit(
                    f"p{i}" * (i + 1), seed=i, max_tokens=40, logprobs=1, prompt_logprobs=1, n=1 + i % 2
                )
                for i in range(16)
            ]
            for _ in range(deaths):
                setup.client.allow(9)
                await until(lambda: setup.now.runner.num_calls == 9)
                starts = setup.client.num_starts
                setup.client.kill("SIGKILL")
                await until(lambda starts=starts: setup.client.num_starts > starts)
            setup.client.resume()
            results = [(await stream.collect(), stream.prompt_logprobs) for stream in streams]
            assert setup.frontend.metrics.engine_restarts == deaths
            assert setup.frontend.state == "ready"
            return results

    assert run_async(outputs(0)) == run_async(outputs(3))


def test_requests_that_come_while_the_engine_is_away_wait_for_it() -> None:
    """In state recovering `submit` accepts, and aborts are obeyed; both hold when the engine is back."""

    async def main() -> None:
        async with started(lambda _: build()) as setup:
            gate = asyncio.Event()
            restart = setup.client.restart

            async def slow_restart() -> Any:
                await gate.wait()
                return await restart()

            setup.client.restart = slow_restart  # type: ignore[method-assign]
            gone = setup.submit(max_tokens=100)
            setup.client.kill("test")
            await until(lambda: setup.frontend.state == "recovering")
            late = setup.submit(max_tokens=5)
            await gone.abort()
            gate.set()
            assert len(await text_of(late)) == 5
            assert [o.finish_reason for o in await gone.collect()] == ["abort"]
            assert len(setup.now.runner.seeds) == 1

    run_async(main())


def test_b61_a_step_that_always_fails_ends_in_errors_and_a_fresh_start() -> None:
    """When no engine gets a token out, everybody in flight gets an error, and the next engine serves new ones."""

    async def main() -> None:
        def make(number: int) -> Assembly:
            return build(ScriptedRunner(raise_at=1 if number < 5 else None))

        async with started(make) as setup:
            streams = [setup.submit(max_tokens=5) for _ in range(8)]
            for stream in streams:
                with pytest.raises(EngineDeadError, match="scripted failure"):
                    await stream.collect()
            await until(lambda: setup.frontend.state == "ready")
            assert len(await text_of(setup.submit(max_tokens=5))) == 5
            assert setup.frontend.metrics.finish_reasons["error"] == 8

    run_async(main())


def test_one_poisonous_request_fails_alone() -> None:
    """A request that kills every engine it boards is found; the others lose nothing."""

    async def main() -> None:
        async with started(lambda _: build(ScriptedRunner(poison="bad"))) as setup:
            good = [setup.submit(f"good {i}", max_tokens=30, seed=i) for i in range(4)]
            bad = setup.submit("bad", max_tokens=30)
            good += [setup.submit(f"good {i}", max_tokens=30, seed=i) for i in range(4, 8)]
            with pytest.raises(EngineDeadError, match="poison"):
                await bad.collect()
            texts = [one_line(await stream.collect()) for stream in good]
            assert [len(text) for text in texts] == [30] * 8
            assert setup.client.num_starts == 5

    run_async(main())


def test_the_operator_is_told_of_a_death_and_of_the_way_back(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the cause, how many choices go on, and how long they had to wait; closing is no death."""

    async def main() -> None:
        async with started() as setup:
            streams = [setup.submit(max_tokens=200, n=2), setup.submit(max_tokens=200)]
            await anext(streams[0])
            setup.client.kill("killed by SIGKILL")
            for stream in streams:
                await stream.collect()

    with caplog.at_level("WARNING"):
        run_async(main())
    died, back = caplog.messages
    assert died == "the engine died: killed by SIGKILL; 3 choices go on when it is back"
    assert back.startswith("the engine is back after 0.")


def test_the_operator_is_told_of_poison_and_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A request that fails because engines die of it is named, and so is the reason why there is no engine."""

    async def main() -> None:
        def make(number: int) -> Assembly:
            if number > 3:
                raise ModelLoadError("the file is gone")
            return build(ScriptedRunner(poison="bad"))

        async with started(make) as setup:
            bad = setup.submit("bad", max_tokens=30)
            with pytest.raises(EngineDeadError, match="poison"):
                await bad.collect()
            await until(lambda: setup.frontend.state == "ready")
            setup.client.kill("test")
            await until(lambda: setup.frontend.state == "dead")
            assert bad.request_id in caplog.text

    with caplog.at_level("WARNING"):
        run_async(main())
    assert "poison" in next(message for message in caplog.messages if message.startswith("request "))
    assert "attempt 1 of 3 to start the engine failed: the file is gone" in caplog.messages
    assert caplog.messages[-1] == "the engine is given up: it could not be started again: the file is gone"


def test_b61_a_stuck_engine_is_killed_and_replaced() -> None:
    """No frame within step_timeout while a request is in flight: the engine is replaced and the tokens go on."""

    async def main() -> None:
        def make(number: int) -> Assembly:
            return build(ScriptedRunner(block_at=4 if number == 0 else None))

        async with started(make, step_timeout=0.05) as setup:
            assert len(await text_of(setup.submit(max_tokens=20))) == 20
            assert setup.client.num_starts == 2
            await asyncio.sleep(0.1)  # idle for longer than the timeout
            assert setup.client.num_starts == 2
            assert len(await text_of(setup.submit(max_tokens=20))) == 20

    run_async(main())


def test_an_engine_that_cannot_be_brought_back_is_dead() -> None:
    """When restarting fails repeatedly the state is dead: in flight and new requests get EngineDeadError."""

    async def main() -> None:
        def make(number: int) -> Assembly:
            if number:
                raise ModelLoadError("the file is gone")
            return build()

        setup = Setup(make)
        await setup.frontend.start()
        stream = setup.submit(max_tokens=100)
        setup.client.kill("test")
        with pytest.raises(EngineDeadError, match="the file is gone"):
            await stream.collect()
        assert setup.frontend.state == "dead"
        with pytest.raises(EngineDeadError, match="the file is gone"):
            setup.submit()
        await setup.frontend.close()

    run_async(main())


def test_an_idle_engine_that_keeps_dying_is_given_up() -> None:
    """Restarts of an engine that dies young with nothing to do don't go on for ever."""

    async def main() -> None:
        async with started(lambda _: build()) as setup:
            while setup.frontend.state != "dead":
                await until(lambda: setup.frontend.state in ("ready", "dead"))
                setup.client.kill("test")
                await asyncio.sleep(0)
            assert setup.client.num_starts == 4

    run_async(main())


def test_a_failed_start_is_raised_and_leaves_it_dead() -> None:
    """`start` raises what the engine said; `submit` then refuses with the reason."""

    async def main() -> None:
        def fail(_: int) -> Assembly:
            raise ModelLoadError("no such file")

        setup = Setup(fail)
        with pytest.raises(EngineDeadError, match="starting"):
            setup.submit()
        with pytest.raises(ModelLoadError, match="no such file"):
            await setup.frontend.start()
        with pytest.raises(EngineDeadError, match="no such file"):
            setup.submit()
        await setup.frontend.close()

    run_async(main())


def test_closing_answers_everybody() -> None:
    """Requests in flight when the front end closes end with EngineDeadError, not in silence."""

    async def main() -> None:
        async with started(paused=True) as setup:
            stream = setup.submit(max_tokens=5)
            reader = asyncio.create_task(stream.collect())
            await asyncio.sleep(0)
        with pytest.raises(EngineDeadError, match="shutting down"):
            await reader

    run_async(main())


def test_a_bug_in_the_reader_leaves_nobody_waiting() -> None:
    """An unexpected exception while taking a frame makes the front end dead, with an answer for everybody."""

    async def main() -> None:
        async with started(paused=True) as setup:
            stream = setup.submit(max_tokens=5)
            setup.frontend.metrics.stepped = lambda frame: 1 / 0  # type: ignore[method-assign,assignment]
            setup.client.resume()
            with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
                await stream.collect()
            assert setup.frontend.state == "dead"

    run_async(main())


def test_b62_nothing_is_kept_of_requests_that_are_gone() -> None:
    """Over many rounds of aborted and finished requests no stream, task or record piles up."""

    async def main() -> None:
        async with started(history=8) as setup:
            streams: list[weakref.ref[RequestStream]] = []
            for round_number in range(200):
                stream = setup.submit(max_tokens=1000 if round_number % 2 else 2, n=2)
                streams.append(weakref.ref(stream))
                async with stream:
                    await anext(stream)
                    if round_number % 2 == 0:
                        await stream.collect()
                del stream
            await until(lambda: not setup.now.engine.has_unfinished())
            gc.collect()
            assert [ref for ref in streams if ref() is not None] == []
            assert len(asyncio.all_tasks()) <= 3
            assert setup.frontend.timeline("r1") is None

    run_async(main())
