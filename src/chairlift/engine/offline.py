"""`OfflineFrontend`: runs a list of requests to the end on an engine in this process, for `LLM` and the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from chairlift.core.messages import TokenLogprobs
from chairlift.engine.admission import Admission
from chairlift.engine.client import SyncEngineClient
from chairlift.engine.failures import error_named
from chairlift.engine.outputs import OutputProcessor, named_logprobs
from chairlift.engine.step_log import StepLog
from chairlift.engine.types import CompletionDelta, EngineRequest, Logprob, RequestOutput, TokenUpdate
from chairlift.errors import EngineDeadError
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.base import Tokenizer


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One prompt and what to do with it."""

    request_id: str
    prompt: str | None  # its text, if it had one; only repeated in the result
    prompt_token_ids: list[int]
    params: SamplingParams


@dataclass(slots=True, eq=False)
class _Job:
    """A request under way: its choices by engine request id."""

    request: OfflineRequest
    outputs: dict[str, OutputProcessor]
    arrived_at: float
    engine_requests: list[EngineRequest]
    unread: list[CompletionDelta] | None = None  # None: nobody reads them
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None
    first_token_at: float | None = None
    finished_at: float | None = None

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs.values())


class OfflineFrontend:
    """Adds requests to the engine and steps it in the caller's thread. Not thread-safe.

    Args:
        seed: makes the seeds drawn for unseeded requests reproducible.
        step_log: where to write a JSON line per step; the caller closes it.
    """

    def __init__(
        self,
        client: SyncEngineClient,
        tokenizer: Tokenizer,
        *,
        seed: int | None = None,
        step_log: StepLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._admission = Admission(client.info, tokenizer, seed)
        self._step_log = step_log
        self._clock = clock
        self._live: dict[str, _Job] = {}  # of all calls under way, by engine request id

    def run(
        self,
        requests: Sequence[OfflineRequest],
        *,
        on_finished: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Complete every request; results in the order given. `on_finished` hears of each as it ends.

        All are checked before any runs, and interrupting (or an error) drops what is unfinished.

        Raises:
            RequestError: one of them could never run; nothing has run then.
            EngineDeadError, Exception: a step failed; the engine can't be used again.
        """
        jobs = [self._admit(request) for request in requests]
        try:
            for job in jobs:
                self._add(job)
            mine = set(jobs)
            while mine:
                for job in self._step():
                    if job.finished and job in mine:
                        mine.remove(job)
                        if on_finished is not None:
                            on_finished(self._result(job))
        finally:
            self._drop(jobs)
        return [self._result(job) for job in jobs]

    def stream(self, request: OfflineRequest) -> Generator[CompletionDelta, None, None]:
        """Complete one request and yield what each step brings; closing the iterator drops the request.

        Raises:
            RequestError: it could never run (raised at once, not at the first `next`).
            EngineDeadError, Exception: a step failed; the engine can't be used again.
        """
        job = self._admit(request)
        job.unread = []
        return self._read(job, job.unread)

    def _read(self, job: _Job, unread: list[CompletionDelta]) -> Generator[CompletionDelta, None, None]:
        try:
            self._add(job)
            while unread or not job.finished:
                if not unread:
                    self._step()
                while unread:
                    yield unread.pop(0)
        finally:
            self._drop([job])

    def _admit(self, request: OfflineRequest) -> _Job:
        now = self._clock()
        rules, engine_requests = self._admission.admit(
            request.request_id, request.prompt_token_ids, request.params, now
        )
        outputs = {each.request_id: OutputProcessor(each.branch, rules) for each in engine_requests}
        return _Job(request, outputs, now, engine_requests)

    def _add(self, job: _Job) -> None:
        for engine_request in job.engine_requests:
            self._client.add_request(engine_request)
            self._live[engine_request.request_id] = job

    def _drop(self, jobs: Sequence[_Job]) -> None:
        """Abort what is unfinished, and let the runner free its rows."""
        unfinished = [i for job in jobs for i in job.outputs if i in self._live]
        for request_id in unfinished:
            del self._live[request_id]
        self._client.abort(unfinished)

    def _step(self) -> list[_Job]:
        """Run a step, hand its news to their jobs, and return those."""
        frame = self._client.step()
        if frame is None:
            raise EngineDeadError(
                f"the engine has nothing to do, yet {len(self._live)} choices are unfinished"
            )
        if self._step_log is not None:
            self._step_log.write(frame)
        now = self._clock()
        touched = []
        for update in frame.updates:
            job = self._live.get(update.request_id)
            if job is not None:
                self._take(job, update, now)
                touched.append(job)
        return touched

    def _take(self, job: _Job, update: TokenUpdate, now: float) -> None:
        if update.finish_reason == "error":
            raise error_named(update.error_code or "", update.error or "the engine refused the request")
        output = job.outputs[update.request_id]
        if output.index == 0:
            job.num_cached_tokens = update.num_cached_tokens
            if update.prompt_logprobs is not None:
                job.prompt_logprobs = update.prompt_logprobs
        if job.first_token_at is None and update.new_token_ids:
            job.first_token_at = now
        delta = output.push(update)
        if job.unread is not None:
            job.unread.append(delta)
        if output.finished:
            if update.finish_reason is None:  # a stop string: the engine doesn't know yet
                self._client.abort([update.request_id])
            del self._live[update.request_id]
            job.finished_at = now

    def _result(self, job: _Job) -> RequestOutput:
        request = job.request
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[output.result() for output in job.outputs.values()],
            finished=job.finished,
            prompt_logprobs=self._prompt_logprobs(job),
            num_cached_tokens=job.num_cached_tokens,
            metrics={
                "arrival_time": job.arrived_at,
                "first_token_time": job.first_token_at,
                "finished_time": job.finished_at,
            },
        )

    def _prompt_logprobs(self, job: _Job) -> list[dict[int, Logprob] | None] | None:
        if job.prompt_logprobs is None:
            return None
        return [None, *(named_logprobs(entry, self._tokenizer) for entry in job.prompt_logprobs)]
