"""`AsyncFrontend`: the side of the engine that clients see. It knows texts and tasks; the engine knows neither.

    submit -> checks, seed, fan-out -> client.add_request            (the caller's task)
    client.next_frame -> OutputProcessor -> RequestStream            (one reader task)

When the engine dies the reader task restarts it and sends every unfinished request again with the tokens it
has; each token is a function of those and the seed, so clients see a pause and the same bits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from chairlift.engine.admission import Admission
from chairlift.engine.choices import Choice, Choices
from chairlift.engine.client import AsyncEngineClient
from chairlift.engine.failures import error_named
from chairlift.engine.metrics import EngineMetrics
from chairlift.engine.outputs import OutputProcessor
from chairlift.engine.recovery import CrashLedger
from chairlift.engine.step_log import StepLog
from chairlift.engine.stream import RequestStream
from chairlift.engine.timeline import Timeline
from chairlift.engine.types import EngineInfo, StepFrame, TokenUpdate
from chairlift.engine.watchdog import Watchdog
from chairlift.errors import ChairliftError, EngineDeadError, OverloadedError, ServerError
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.base import Tokenizer

State: TypeAlias = Literal["starting", "ready", "recovering", "dead"]
"""starting: no request is accepted yet. ready: all is well. recovering: the engine died and is being brought
back; requests are accepted and wait. dead: it can't be brought back, or the front end is closed."""

logger = logging.getLogger(__name__)

# Attempts to bring an engine back that fail, or idle engines that die young, before it is dead.
MAX_STARTS = 3
YOUNG_S = 60.0
RETRY_PAUSE_S = 0.5
RETRY_AFTER_S = 1.0


class AsyncFrontend:
    """Accepts requests, streams their output, and keeps the engine going.

    Every method but `start` and `close` is quick; all must be called in one event loop.

    Args:
        client: an engine in its own process, or a fake of one.
        seed: makes the seeds drawn for unseeded requests reproducible.
        step_timeout: seconds without a frame, while a request is unfinished, after which the engine counts as
            stuck; it is killed and recovered like a dead one. Time in which this event loop itself was held up
            does not count.
        start_timeout: seconds that a restarted engine may take to get ready.
        history: how many finished requests `timeline` remembers.
        step_log: where to write a JSON line per step; closed by `close`.
        clock: seconds; time.monotonic, or whatever agrees with the engine's clock.
    """

    def __init__(
        self,
        client: AsyncEngineClient,
        tokenizer: Tokenizer,
        *,
        seed: int | None = None,
        step_timeout: float = 60.0,
        start_timeout: float = 600.0,
        history: int = 1024,
        step_log: StepLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = EngineMetrics()
        self._client = client
        self._tokenizer = tokenizer
        self._seed = seed
        self._start_timeout = start_timeout
        self._step_log = step_log
        self._clock = clock
        self._timeline = Timeline(history)
        self._ledger = CrashLedger()
        self._choices = Choices()
        self._watchdog = Watchdog(step_timeout, self._is_busy, client.kill)
        self._state: State = "starting"
        self._death = "it is starting"  # why no request is accepted
        self._info: EngineInfo | None = None
        self._admission: Admission | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready_at = 0.0
        self._young_deaths = 0  # in a row, of engines that were idle

    # -- life ------------------------------------------------------------------------------------------------
    async def start(self) -> EngineInfo:
        """Wait until the engine is ready, then accept requests.

        Raises:
            ConfigError, ModelLoadError: the engine can't start with this configuration or model.
            EngineDeadError: it ended in any other way.
        """
        try:
            info = await self._client.start()
        except ChairliftError as error:
            self._die(str(error))
            raise
        self._info = info
        self._admission = Admission(info, self._tokenizer, self._seed)
        self._set_ready()
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="chairlift-frames")
        return info

    async def close(self) -> None:
        """Stop the engine. Requests that are still unfinished end with EngineDeadError."""
        self._die("the server is shutting down")
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._client.close()
        if self._step_log is not None:
            self._step_log.close()

    @property
    def state(self) -> State:
        """What to answer to a health check."""
        return self._state

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved at start; raises EngineDeadError before `start` has returned."""
        if self._info is None:
            raise EngineDeadError(f"no engine: {self._death}", retry_after=RETRY_AFTER_S)
        return self._info

    @property
    def num_unfinished(self) -> int:
        """Choices that wait or run."""
        return len(self._choices)

    # -- requests --------------------------------------------------------------------------------------------
    def submit(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, request_id: str
    ) -> RequestStream:
        """Accept one request with `params.n` choices and send it to the engine.

        `request_id` gets a suffix when an unfinished or just aborted request has it: see `RequestStream.request_id`.
        `max_tokens=None` means up to max_model_len; 0 computes the prompt (and its logprobs) only.

        Raises:
            InvalidParameterError, ContextLengthError, PoolTooSmallError: it could never run; nothing was done.
            OverloadedError: max_num_seqs + max_num_waiting choices are unfinished.
            EngineDeadError: the engine is dead, or not ready for the first time yet.
        """
        if self._state == "dead" or self._admission is None:
            raise EngineDeadError(f"the engine takes no requests: {self._death}", retry_after=RETRY_AFTER_S)
        now = self._clock()
        unique_id = self._choices.unused(request_id, params.n)
        self._check_load(params.n)
        rules, requests = self._admission.admit(unique_id, prompt_token_ids, params, now)
        outputs = [OutputProcessor(request.branch, rules) for request in requests]
        stream = RequestStream(unique_id, requests[0].prompt_token_ids, outputs, self._abort)
        self.metrics.prompt_tokens += len(stream.prompt_token_ids)
        ids = [request.request_id for request in requests]
        self._timeline.arrived(unique_id, ids, len(stream.prompt_token_ids), now)
        for request, output in zip(requests, outputs, strict=True):
            self._choices.add(Choice(request, output, stream))
            if self._state == "ready":
                self._client.add_request(request)
        self._watchdog.arm()
        return stream

    def timeline(self, request_id: str) -> dict[str, Any] | None:
        """What happened to a request, running or among the last finished ones; see `Timeline.describe`."""
        return self._timeline.describe(request_id)

    def _check_load(self, more: int) -> None:
        info, unfinished = self.info, self.num_unfinished
        limit = info.max_num_seqs + info.max_num_waiting
        if unfinished + more > limit:
            raise OverloadedError(
                f"{unfinished} choices are unfinished and this request has {more}; the limit is {limit} "
                f"(--max-num-seqs {info.max_num_seqs} and --max-num-waiting {info.max_num_waiting})",
                retry_after=RETRY_AFTER_S,
            )

    def _abort(self, stream: RequestStream) -> None:
        """Drop what is unfinished of a stream, here and in the engine; its consumer sees finish_reason abort."""
        dropped = self._withdraw(stream)
        for choice in dropped:
            stream.deliver(choice.output.finish("abort"))
        self._end(dropped)

    def _fail(self, stream: RequestStream, error: ChairliftError) -> None:
        """Drop what is unfinished of a stream; its consumer gets the error."""
        dropped = self._withdraw(stream)
        stream.fail(error)
        self._end(dropped)

    def _withdraw(self, stream: RequestStream) -> list[Choice]:
        dropped = self._choices.of(stream)
        if self._state == "ready" and dropped:
            self._client.abort([choice.id for choice in dropped])
        return dropped

    def _end(self, choices: Sequence[Choice]) -> None:
        """Choices have ended, for whatever reason: forget them."""
        now = self._clock()
        for choice in choices:
            self._choices.remove(choice)
            reason = choice.output.finish_reason or "error"
            self._timeline.finished(choice.id, choice.stream.request_id, reason, now)
            since_first = 0.0 if choice.first_token_at is None else now - choice.first_token_at
            self.metrics.finished(
                reason, now - choice.request.arrival_time, len(choice.output.token_ids), since_first
            )
        for choice in choices:
            self._send(self._ledger.ended(choice.id))

    # -- frames ----------------------------------------------------------------------------------------------
    async def _read(self) -> None:
        """Take frames, and bring the engine back when there are none, until it is dead for good."""
        try:
            while self._state != "dead":
                try:
                    frame = await self._client.next_frame()
                except EngineDeadError as error:
                    await self._recover(error)
                    continue
                self._take(frame)
        except Exception as error:  # a bug of ours must not leave anybody waiting
            logger.exception("a frame of the engine could not be taken")
            self._give_up(f"internal error: {error!r}")
            self._client.kill(self._death)
            raise

    def _take(self, frame: StepFrame) -> None:
        now = self._clock()
        self._watchdog.sign_of_life()
        self.metrics.stepped(frame)
        self._timeline.stepped(frame)
        self._ledger.stepped(row.request_id for row in frame.rows)
        if self._step_log is not None:
            self._step_log.write(frame)
        for update in frame.updates:
            choice = self._choices.get(update.request_id)
            if choice is not None:
                self._take_update(choice, update, now)

    def _take_update(self, choice: Choice, update: TokenUpdate, now: float) -> None:
        if update.finish_reason == "error":
            message = update.error or "the engine refused the request"
            self._fail(choice.stream, error_named(update.error_code or "", message))
            return
        choice.note(update)
        try:
            delta = choice.output.push(update)
        except Exception as error:
            self._fail(choice.stream, ServerError(f"turning tokens into text failed: {error!r}"))
            return
        if delta.token_ids:
            self._count(choice, len(delta.token_ids), update.num_cached_tokens, now)
        choice.stream.deliver(delta)
        if choice.output.finished:
            if update.finish_reason is None:  # a stop string: the engine doesn't know yet
                self._client.abort([choice.id])
            self._end([choice])

    def _count(self, choice: Choice, number: int, num_cached: int, now: float) -> None:
        """Metrics, timeline and ledger of new tokens."""
        metrics = self.metrics
        metrics.generation_tokens += number
        if choice.last_token_at is None:
            choice.first_token_at = now
            arrived = choice.request.arrival_time
            metrics.time_to_first_token.observe(now - arrived)
            metrics.queue_time.observe(max(0.0, self._timeline.boarded_at(choice.id, now) - arrived))
        else:
            metrics.inter_token_latency.observe((now - choice.last_token_at) / number)
        choice.last_token_at = now
        self._timeline.got_tokens(choice.id, number, num_cached, now)
        self._send(self._ledger.progressed(choice.id))

    # -- when the engine dies --------------------------------------------------------------------------------
    async def _recover(self, death: EngineDeadError) -> None:
        """Answer those who can't go on, start a new engine, and send it everybody else."""
        if self._state == "dead":
            return
        self._state = "recovering"
        self.metrics.engine_died()
        for choice_id in self._ledger.crashed(self._choices.ids()):
            choice = self._choices.get(choice_id)
            if choice is not None:  # it may have gone with another choice of its stream
                error = EngineDeadError(f"the engine died repeatedly: {death.message}")
                logger.error("request %s fails: %s", choice.stream.request_id, error.message)
                self._fail(choice.stream, error)
        logger.warning(
            "the engine died: %s; %d choices go on when it is back", death.message, self.num_unfinished
        )
        if self._dies_young():
            self._give_up(f"it died {MAX_STARTS + 1} times soon after it was started: {death.message}")
            return
        died_at = self._clock()
        if await self._restart():
            seconds = self._clock() - died_at
            logger.warning("the engine is back after %.1f s, as process %s", seconds, self._client.pid)
            self._set_ready()
            for choice_id in self._ledger.boarding(self._choices.ids()):
                self._send(choice_id)

    def _dies_young(self) -> bool:
        """True when idle engines keep dying soon after they got ready: restarting them for ever helps nobody."""
        young = self.num_unfinished == 0 and self._clock() - self._ready_at < YOUNG_S
        self._young_deaths = self._young_deaths + 1 if young else 0
        return self._young_deaths > MAX_STARTS

    async def _restart(self) -> bool:
        """Bring an engine up; after MAX_STARTS failures in a row everything is dead."""
        problem = ""
        for attempt in range(MAX_STARTS):
            await asyncio.sleep(attempt * RETRY_PAUSE_S)
            try:
                await asyncio.wait_for(self._client.restart(), self._start_timeout)
            except ChairliftError as error:
                problem = str(error)
            except asyncio.TimeoutError:
                problem = f"not ready after {self._start_timeout} s"
            else:
                return True
            logger.warning(
                "attempt %d of %d to start the engine failed: %s", attempt + 1, MAX_STARTS, problem
            )
        self._give_up(f"it could not be started again: {problem}")
        return False

    def _set_ready(self) -> None:
        self._state = "ready"
        self._ready_at = self._clock()
        self._watchdog.arm()

    def _send(self, choice_id: str | None) -> None:
        """Send an unfinished choice to a new engine, with the tokens that it has."""
        choice = self._choices.get(choice_id) if choice_id is not None else None
        if choice is not None and self._state == "ready":
            self._timeline.restarted(choice.id)
            self._client.add_request(choice.resumed())

    def _give_up(self, reason: str) -> None:
        """Die, and not because somebody asked for it."""
        logger.error("the engine is given up: %s", reason)
        self._die(reason)

    def _die(self, reason: str) -> None:
        """Accept nothing more and answer everybody."""
        if self._state == "dead":
            return
        self._state, self._death = "dead", reason
        self._watchdog.disarm()
        for choice in list(self._choices):
            if not choice.stream.finished:
                self._fail(choice.stream, EngineDeadError(f"the engine is gone: {reason}"))

    def _is_busy(self) -> bool:
        return self._state == "ready" and self.num_unfinished > 0
