"""A runner without a model: the next token is a function of the tokens before it, and KV is checked, not used.

Each KV slot remembers a digest of all tokens up to its position. Before it samples, the runner reads every slot
of the sequence through the block table: a block that was shared, evicted, reused or freed wrongly shows up as a
digest of some other history.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.core.messages import (
    ModelRunnerOutput,
    NewRequest,
    RequestResult,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprobs,
)
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.sampling_params import SamplingParams

VOCAB_SIZE = 11
EOS = 0
MASK = 2**64 - 1


def digest_after(digest: int, token_id: int) -> int:
    """The digest of a history that goes on with `token_id`."""
    mixed = ((digest ^ (token_id + 1)) * 0x9E3779B97F4A7C15 + 0x1234567) & MASK
    return mixed ^ (mixed >> 29)


def digests(token_ids: list[int]) -> list[int]:
    """The digest after each token."""
    found, digest = [], 0
    for token_id in token_ids:
        digest = digest_after(digest, token_id)
        found.append(digest)
    return found


def sample(digest: int, seed: int, params: SamplingParams, num_output: int) -> int:
    """The token after a history; stop tokens are banned until min_tokens are out."""
    token_id = (digest ^ seed) % VOCAB_SIZE
    stops = {EOS, *params.stop_token_ids}
    while num_output < params.min_tokens and token_id in stops:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def alone(prompt: list[int], params: SamplingParams, seed: int, max_total: int) -> tuple[list[int], str]:
    """Output tokens and finish reason of a request that runs by itself, with no scheduler involved."""
    tokens, output = list(prompt), []
    while params.max_tokens != 0:
        token_id = sample(digests(tokens)[-1], seed, params, len(output))
        tokens.append(token_id)
        output.append(token_id)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if token_id in stops and len(output) > params.min_tokens:
            return output, "stop"
        if len(output) == params.max_tokens or len(tokens) == max_total:
            break
    return output, "length"


@dataclass
class Row:
    """What a runner keeps of a request."""

    new: NewRequest
    token_ids: list[int]
    block_ids: list[int]
    digests: list[int]  # after each of the tokens

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.digests.append(digest_after(self.digests[-1], token_id))


class FakeRunner:
    """Implements `chairlift.core.ports.Runner`; raises AssertionError when a step breaks the contract."""

    def __init__(self, block_size: int, num_drafts: int = 0) -> None:
        self.block_size = block_size
        self.num_drafts = num_drafts
        self.rows: dict[str, Row] = {}
        self.kv: dict[tuple[int, int], int] = {}
        self.num_accepted = 0
        self.num_rejected = 0

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        for request_id in [*scheduled.finished_request_ids, *(p.request_id for p in scheduled.preempted)]:
            del self.rows[request_id]
        for new in scheduled.new_requests:
            assert new.request_id not in self.rows
            self.rows[new.request_id] = Row(
                new, list(new.token_ids), list(new.block_ids), digests(new.token_ids)
            )
        assert len({s.request_id for s in scheduled.scheduled}) == len(scheduled.scheduled)
        assert sum(s.num_scheduled_tokens for s in scheduled.scheduled) == scheduled.num_scheduled_tokens
        assert scheduled.num_scheduled_tokens <= scheduled.token_budget
        histories = [self._write(share) for share in scheduled.scheduled]
        result = ModelRunnerOutput()
        for share, history in zip(scheduled.scheduled, histories, strict=True):
            self._read(share, history, result)
        return result

    def close(self) -> None:
        """Nothing to release."""

    def _write(self, share: ScheduledRequest) -> list[int]:
        row = self.rows[share.request_id]
        row.block_ids.extend(share.new_block_ids)
        end = share.num_computed_tokens + share.num_scheduled_tokens
        history = row.digests[:end]
        for draft in share.draft_token_ids:
            history.append(digest_after(history[-1], draft))
        assert len(history) == end
        for position in range(share.num_computed_tokens, end):
            self.kv[self._slot(row, position)] = history[position]
        return history

    def _slot(self, row: Row, position: int) -> tuple[int, int]:
        return row.block_ids[position // self.block_size], position % self.block_size

    def _read(self, share: ScheduledRequest, history: list[int], result: ModelRunnerOutput) -> None:
        row = self.rows[share.request_id]
        for position, digest in enumerate(history):
            assert self.kv[self._slot(row, position)] == digest, f"{share} read foreign KV at {position}"
        self._prompt_logprobs(row, share, history, result)
        if len(history) >= len(row.token_ids):
            self._sample(row, share, history, result)

    def _prompt_logprobs(
        self, row: Row, share: ScheduledRequest, history: list[int], result: ModelRunnerOutput
    ) -> None:
        if row.new.sampling_params.prompt_logprobs is not None:
            start, end = share.num_computed_tokens, min(len(history), row.new.num_prompt_tokens - 1)
            result.prompt_logprobs[share.request_id] = [
                TokenLogprobs(row.token_ids[i + 1], -float(history[i] % 100), 1) for i in range(start, end)
            ]

    def _sample(
        self, row: Row, share: ScheduledRequest, history: list[int], result: ModelRunnerOutput
    ) -> None:
        params, sampled = row.new.sampling_params, []
        for i, draft in enumerate([*share.draft_token_ids, None]):
            digest = history[len(history) - len(share.draft_token_ids) - 1 + i]
            num_output = len(row.token_ids) - row.new.num_prompt_tokens
            sampled.append(sample(digest, row.new.seed, params, num_output))
            row.append(sampled[-1])
            if sampled[-1] != draft:
                break
        self.num_accepted += len(sampled) - 1
        self.num_rejected += len(share.draft_token_ids) - len(sampled) + 1
        result.sampled_token_ids[share.request_id] = sampled
        if params.logprobs is not None:
            result.logprobs[share.request_id] = [TokenLogprobs(t, -1.0, 1) for t in sampled]
        if self.num_drafts:
            result.draft_token_ids[share.request_id] = self._drafts(row)

    def _drafts(self, row: Row) -> list[int]:
        """The true continuation, with every third token wrong."""
        token_ids, digest = [], row.digests[-1]
        for i in range(self.num_drafts):
            num_output = len(row.token_ids) - row.new.num_prompt_tokens + i
            token_id = sample(digest, row.new.seed, row.new.sampling_params, num_output)
            if digest % 3 == 0:
                token_id = (token_id + 1) % VOCAB_SIZE
            token_ids.append(token_id)
            digest = digest_after(digest, token_id)
        return token_ids


class Lift:
    """A scheduler and a fake runner that take steps together, collect what comes out, and check as they go."""

    def __init__(self, scheduler: Scheduler, runner: FakeRunner) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.now = 0.0
        self.outputs: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.results: dict[str, list[RequestResult]] = {}
        self.steps: list[SchedulerOutput] = []

    def add(self, request: Request, **kwargs: bool) -> Request:
        self.scheduler.add_request(request, **kwargs)
        self.outputs[request.request_id] = request.output_token_ids
        return request

    def begin(self) -> SchedulerOutput:
        self.now += 1.0
        scheduled = self.scheduler.schedule(self.now)
        self.steps.append(scheduled)
        return scheduled

    def end(self, scheduled: SchedulerOutput) -> None:
        for result in self.scheduler.update(scheduled, self.runner.execute(scheduled)):
            request_id = result.request_id
            self.outputs[request_id].extend(result.new_token_ids)
            self.results.setdefault(request_id, []).append(result)
            if result.prompt_logprobs is not None:
                assert request_id not in self.prompt_logprobs
                self.prompt_logprobs[request_id] = result.prompt_logprobs
            if result.finish_reason is not None:
                assert request_id not in self.finish
                self.finish[request_id] = result.finish_reason

    def step(self) -> SchedulerOutput:
        scheduled = self.begin()
        self.end(scheduled)
        self.scheduler.check_integrity()
        return scheduled

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left to do; returns the number of steps."""
        for count in range(max_steps):
            if not self.scheduler.has_work():
                return count
            self.step()
        raise AssertionError(f"unfinished after {max_steps} steps: {self.scheduler.stats()}")
