"""The step loop's body: schedule, execute, update, once. It neither waits, nor sends, nor knows any text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from chairlift.core.messages import ModelRunnerOutput, RequestResult, SchedulerOutput
from chairlift.core.ports import Runner
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.engine.types import EngineInfo, EngineRequest, StepFrame, StepRow, StepStats, TokenUpdate
from chairlift.errors import ChairliftError, EngineDeadError


class Engine:
    """A scheduler and a runner that take turns.

    A refused request never raises: it becomes a `TokenUpdate` with finish_reason "error" in the next frame, so
    that an engine in another process behaves the same. When a step raises, scheduler and runner no longer
    agree: that error goes to the caller, and every later call raises EngineDeadError.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        info: EngineInfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self.runner = runner
        self._clock = clock
        self._refused: list[TokenUpdate] = []
        self._aborted = False  # rows to free and gauges to report although nothing may be left to compute
        self._failure: Exception | None = None

    def add_request(self, request: EngineRequest) -> None:
        """Queue one stream of tokens; with `output_token_ids`, resume one.

        Whether the queue is full is the front end's question: it may ask before it has worked for the request,
        and must not ask again for one that comes back after a crash.
        """
        self._check_alive()
        try:
            self._scheduler.add_request(
                Request(
                    request.request_id,
                    request.prompt_token_ids,
                    request.sampling_params,
                    seed=request.seed,
                    branch=request.branch,
                    eos_token_ids=request.eos_token_ids,
                    output_token_ids=request.output_token_ids,
                    arrival_time=request.arrival_time,
                )
            )
        except ChairliftError as error:
            refusal = TokenUpdate(
                request.request_id, [], "error", error=str(error), error_code=type(error).__name__
            )
            self._refused.append(refusal)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests and free their blocks; unknown ids are ignored. No update is sent for them."""
        for request_id in request_ids:
            self._aborted |= self._scheduler.abort(request_id)

    def has_unfinished(self) -> bool:
        """True while `step` has something to do."""
        return self._scheduler.has_work() or self._aborted or bool(self._refused)

    def step(self) -> StepFrame | None:
        """Run one step and return its frame; None when there was nothing to do.

        Raises:
            EngineDeadError: an earlier step has failed.
            Exception: whatever the runner raised; the engine is dead then.
        """
        self._check_alive()
        if not self.has_unfinished():
            return None
        try:
            return self._step()
        except Exception as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Stop the runner's threads and release its memory."""
        self.runner.close()

    def _step(self) -> StepFrame:
        started = self._clock()
        self._aborted = False
        scheduled = self._scheduler.schedule(started)
        planned = self._clock()
        if scheduled.scheduled or scheduled.finished_request_ids or scheduled.preempted:
            output = self.runner.execute(scheduled)
        else:
            output = ModelRunnerOutput()
        executed = self._clock()
        results = self._scheduler.update(scheduled, output)
        refused, self._refused = self._refused, []
        stats = self.stats()
        finished = self._clock()
        stats.schedule_s, stats.execute_s, stats.update_s = (
            planned - started,
            executed - planned,
            finished - executed,
        )
        stats.prepare_s, stats.upload_s = output.prepare_s, output.upload_s
        stats.forward_s, stats.sample_s = output.forward_s, output.sample_s
        return StepFrame(
            step=scheduled.step,
            started_at=started,
            finished_at=finished,
            updates=refused + [_update_of(result) for result in results if _has_news(result)],
            stats=stats,
            rows=_rows_of(scheduled),
            preempted=[(preemption.request_id, preemption.reason) for preemption in scheduled.preempted],
        )

    def stats(self) -> StepStats:
        """Gauges and totals as they stand now; the times are zero."""
        stats = self._scheduler.stats()
        return StepStats(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_kv_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks + stats.num_cached_blocks,
            num_cached_blocks=stats.num_cached_blocks,
            num_preemptions_total=stats.num_preemptions,
            prefix_query_tokens_total=stats.prefix_query_tokens,
            prefix_hit_tokens_total=stats.prefix_hit_tokens,
        )

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(f"the engine stopped after a step failed: {self._failure!r}")


def _has_news(result: RequestResult) -> bool:
    return bool(result.new_token_ids or result.finish_reason or result.prompt_logprobs)


def _update_of(result: RequestResult) -> TokenUpdate:
    return TokenUpdate(
        result.request_id,
        result.new_token_ids,
        result.finish_reason,
        result.stop_reason,
        result.logprobs,
        result.prompt_logprobs,
        result.num_cached_tokens,
        result.num_preemptions,
    )


def _rows_of(scheduled: SchedulerOutput) -> list[StepRow]:
    new = {request.request_id for request in scheduled.new_requests}
    return [
        StepRow(row.request_id, row.num_scheduled_tokens, row.num_computed_tokens, row.request_id in new)
        for row in scheduled.scheduled
    ]
