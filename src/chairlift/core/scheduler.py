"""What runs next. One rule: hand each request tokens until `num_computed_tokens` catches up with `num_tokens`.

There is no prefill phase and no decode phase. A step's token budget goes, in this order, to

    1. every running request with one token to compute (its drafts ride along if there is room),
    2. the oldest unfinished prefill: it is promised `prefill_floor` tokens,
    3. whoever has the fewest tokens left, running or boarding now; the first `prefill_floor` tokens of a
       newcomer go before longer running prefills.

Rule 1 keeps streams flowing, rule 2 keeps a long prompt moving under a flood of short ones, rule 3 lets short
ones board and answer while a long one is under way. `schedule` and `update` are the only things that move
requests; time is an argument.
"""

from __future__ import annotations

from chairlift.config import SchedulerConfig
from chairlift.core.admission import AdmissionLimits
from chairlift.core.block_manager import BlockManager
from chairlift.core.messages import (
    ModelRunnerOutput,
    RequestResult,
    ScheduledRequest,
    SchedulerOutput,
    SchedulerStats,
)
from chairlift.core.policy import Policy, make_policy
from chairlift.core.queue import WaitingQueue
from chairlift.core.request import Request, RequestStatus
from chairlift.core.results import append_sampled, outcome_of
from chairlift.core.step import StepPlan
from chairlift.errors import InvalidParameterError, ServerError

MIN_PREFILL_FLOOR = 16  # tokens


def prefill_floor(token_budget: int) -> int:
    """Tokens of each step that the oldest unfinished prefill is promised: max(16, a quarter of the budget),
    but no more than half of it, so that with a tiny budget streams move too."""
    return min(max(MIN_PREFILL_FLOOR, token_budget // 4), (token_budget + 1) // 2)


class Scheduler:
    """Plans steps (`schedule`) and applies what they computed (`update`).

    A request waits, runs, and finishes; when KV blocks run out a running one is preempted: it drops its
    blocks, keeps its tokens, and waits at the front of the queue. The running set never exceeds
    min(max_num_seqs, budget), so each of its members can get a token in each step.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_prefix_caching: bool = True,
        policy: Policy | None = None,
    ) -> None:
        self.config = config
        self.limits = AdmissionLimits(max_model_len, num_blocks, block_size)
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching)
        self._policy = policy or make_policy(config.scheduling_policy)
        self._budget = config.max_num_batched_tokens
        self._floor = prefill_floor(self._budget)
        self._max_running = min(config.max_num_seqs, self._budget)
        self._requests: dict[str, Request] = {}  # all unfinished ones
        self._waiting = WaitingQueue()
        self._running: dict[str, Request] = {}  # in the order of boarding
        self._finished_ids: list[str] = []  # rows that the runner may free
        self._in_flight: dict[int, list[Request]] = {}  # by step: whose shares are being computed
        self._num_steps = 0
        self._num_preemptions = 0

    # -- requests come and go --------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request, however many wait: how long the queue may be is the front end's question.

        Raises:
            InvalidParameterError: the prompt is empty, the id is taken, or nothing is left to generate.
            ContextLengthError: prompt + max_tokens is more than max_model_len.
            PoolTooSmallError: its KV could never fit into the pool.
        """
        if request.request_id in self._requests:
            raise InvalidParameterError(
                f"request id {request.request_id!r} is in use by an unfinished request", param="request_id"
            )
        limit = self.limits.max_total_tokens(request.num_prompt_tokens, request.sampling_params.max_tokens)
        if request.num_output_tokens and request.num_tokens >= limit:
            raise InvalidParameterError(
                f"the request resumes with {request.num_output_tokens} output tokens; its limit is "
                f"{limit - request.num_prompt_tokens}, so nothing is left to generate",
                param="output_token_ids",
            )
        request.max_total_tokens = limit
        self.blocks.extend_keys(request)
        self._requests[request.request_id] = request
        self._waiting.push_back(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request, wherever it is, also while a step with a share of it is in flight (what that step
        brings it is discarded). Returns False when there is no such request: it may just have finished."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        request.finish_reason = "abort"
        self._forget(request)
        return True

    def _forget(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            del self._running[request.request_id]
            self.blocks.free(request)
            self._finished_ids.append(request.request_id)
        else:
            self._waiting.remove(request)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED

    # -- plan a step -----------------------------------------------------------------------------------------

    def schedule(self, now: float) -> SchedulerOutput:
        """Plan the next step: shares of the token budget, blocks, boardings and preemptions.

        Its result goes to `Runner.execute`, and then with what that returned to `update`.
        """
        plan = StepPlan(self._budget, now)
        decodes: list[Request] = []
        prefills: list[Request] = []
        for request in self._running.values():
            (decodes if request.num_uncomputed_tokens == 1 else prefills).append(request)
        self._serve_decodes(plan, decodes, held_back=self._floor if prefills else 0)
        self._line_up_prefills(plan, prefills)
        if self._waiting:
            self._board_newcomers(plan)
        self._serve_prefills(plan, up_to=None)
        return self._commit(plan)

    def _serve_decodes(self, plan: StepPlan, decodes: list[Request], held_back: int) -> None:
        """One token for every request that needs just one, and its drafts from what nobody else needs."""
        plan.held = len(decodes) + held_back
        for request in decodes:
            plan.held -= 1
            if request.status is RequestStatus.RUNNING:  # it may have been preempted for an older one
                num_drafts = len(request.draft_token_ids)
                if num_drafts:
                    num_drafts = max(0, min(num_drafts, plan.unpromised - 1))
                self._serve(plan, request, 1 + num_drafts)

    def _line_up_prefills(self, plan: StepPlan, prefills: list[Request]) -> None:
        """Queue the prefills that are still running, and hold what the oldest is promised."""
        prefills = [request for request in prefills if request.status is RequestStatus.RUNNING]
        plan.shortest_first.extend(sorted(prefills, key=_uncomputed))
        plan.held = 0
        if prefills:
            plan.oldest_prefill = prefills[0]
            plan.held = min(self._floor, _uncomputed(prefills[0]), plan.left)

    def _serve_prefills(self, plan: StepPlan, up_to: int | None) -> None:
        """Serve the running prefills with at most `up_to` tokens left (None: all of them), shortest first."""
        queue = plan.shortest_first
        while queue and (up_to is None or _uncomputed(queue[0]) <= up_to):
            request = queue.popleft()
            if request is plan.oldest_prefill:
                plan.held = 0
            if request.status is RequestStatus.RUNNING:
                self._serve(plan, request, min(_uncomputed(request), plan.unpromised))

    def _serve(self, plan: StepPlan, request: Request, num_tokens: int) -> None:
        """Give a running request its next `num_tokens` tokens, or as many as there are KV blocks for.

        With no block for even one it takes those of others, newest first under fcfs; who is itself the next
        victim sits the step out and keeps its blocks.
        """
        if num_tokens < 1:
            return
        if self.blocks.has_room(request, request.num_computed_tokens + num_tokens):
            plan.add(request, num_tokens, ())
            return
        fitting = self.blocks.num_tokens_fitting(request) - request.num_computed_tokens
        if fitting < 1:
            fitting = self._make_room(plan, request)
        num_tokens = min(num_tokens, fitting)
        if num_tokens > 0:
            new_block_ids = self.blocks.grow(request, request.num_computed_tokens + num_tokens)
            plan.add(request, num_tokens, new_block_ids)

    def _make_room(self, plan: StepPlan, request: Request) -> int:
        """Preempt others until `request` can compute a token; return how many it can (0: none)."""
        for victim in list(self._policy.victims(self._running.values(), request, plan.now)):
            if victim is request:
                break
            self._preempt(plan, victim, f"KV blocks ran out for {request.request_id}")
            fitting = self.blocks.num_tokens_fitting(request) - request.num_computed_tokens
            if fitting > 0:
                return fitting
        return 0

    def _preempt(self, plan: StepPlan, victim: Request, reason: str) -> None:
        plan.preempt(victim, reason)
        del self._running[victim.request_id]
        self.blocks.free(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.draft_token_ids = ()
        victim.num_preemptions += 1
        self._num_preemptions += 1
        self._waiting.push_front(victim)

    # -- boarding --------------------------------------------------------------------------------------------

    def _board_newcomers(self, plan: StepPlan) -> None:
        """Let waiting requests in, in the policy's order, until one has to stay; nobody passes it."""
        # Everyone who runs gets the blocks of the tokens it knows, and one more to grow, before a newcomer gets
        # any: boarding by taking blocks that must be taken back a few steps later would be work done twice.
        reserved = sum(map(self.blocks.num_blocks_missing, plan.shortest_first)) + len(self._running)
        plan.spare_blocks = self.blocks.pool.num_available - reserved
        for request in self._policy.order(self._waiting, plan.now):
            if not self._board(plan, request):
                break
        for request in plan.boarded:
            self._waiting.remove(request)
            self._running[request.request_id] = request

    def _board(self, plan: StepPlan, request: Request) -> bool:
        """Let one request in, if there are a seat, tokens and blocks for it."""
        if len(self._running) + len(plan.boarded) >= self._max_running:
            return False
        if not self._policy.may_admit(request, [*self._running.values(), *plan.boarded], plan.now):
            return False
        # Before the prefix cache is asked: serving others may evict from it.
        self._serve_prefills(plan, up_to=min(request.num_tokens, self._floor))
        cached = self.blocks.find_cached_prefix(request)
        num_uncomputed = request.num_tokens - len(cached) * self.blocks.block_size
        num_blocks = self.blocks.num_blocks_taken(request, cached)
        num_tokens = self._first_share(plan, num_uncomputed)
        if plan.preempted or num_tokens < 1 or num_blocks > plan.spare_blocks:
            return False
        plan.spare_blocks -= num_blocks + 1
        self._seat(plan, request, cached, num_tokens)
        return True

    def _first_share(self, plan: StepPlan, num_uncomputed: int) -> int:
        """Tokens for a newcomer in its first step; less than 1 when it has to wait."""
        overtakes = plan.shortest_first and _uncomputed(plan.shortest_first[0]) < num_uncomputed
        return min(num_uncomputed, plan.unpromised, self._floor if overtakes else self._budget)

    def _seat(self, plan: StepPlan, request: Request, cached: list[int], num_tokens: int) -> None:
        self.blocks.admit(request, cached)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = len(cached) * self.blocks.block_size
        if request.num_preemptions == 0:
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        self.blocks.grow(request, request.num_computed_tokens + num_tokens)
        plan.board(request, num_tokens, self.blocks.block_table(request))

    def _commit(self, plan: StepPlan) -> SchedulerOutput:
        self._num_steps += 1
        output = plan.output(self._num_steps)
        output.finished_request_ids, self._finished_ids = self._finished_ids, []
        output.num_running, output.num_waiting = len(self._running), len(self._waiting)
        self._in_flight[output.step] = list(plan.shares)
        return output

    # -- apply its results -----------------------------------------------------------------------------------

    def update(self, scheduled: SchedulerOutput, result: ModelRunnerOutput) -> list[RequestResult]:
        """Apply what a step computed; return what it brought to each request that got a token or ended.

        Requests that were aborted since `schedule` bring nothing.

        Raises:
            ServerError: the step is not in flight, or the runner returned too few or too many tokens.
        """
        in_flight = self._in_flight.pop(scheduled.step, None)
        if in_flight is None:
            raise ServerError(f"step {scheduled.step} is not in flight; its results cannot be applied")
        results = []
        for request, share in zip(in_flight, scheduled.scheduled, strict=True):
            if request.status is RequestStatus.RUNNING:
                outcome = self._apply(request, share, result)
                if outcome is not None:
                    results.append(outcome)
        return results

    def _apply(
        self, request: Request, share: ScheduledRequest, result: ModelRunnerOutput
    ) -> RequestResult | None:
        request_id = request.request_id
        if request.prompt_logprobs is not None:
            entries = result.prompt_logprobs.get(request_id, ())
            request.collect_prompt_logprobs(share.num_computed_tokens, entries)
        request.num_computed_tokens += share.num_scheduled_tokens - len(share.draft_token_ids)
        new_token_ids: list[int] = []
        if request.num_uncomputed_tokens == 0:
            new_token_ids = append_sampled(request, share, result)
            drafts = result.draft_token_ids.get(request_id)
            request.draft_token_ids = request.acceptable(drafts) if drafts else ()
        self.blocks.register_filled(request, share.num_computed_tokens)
        outcome = outcome_of(request, new_token_ids, result)
        if request.finish_reason is not None:
            self._forget(request)
        return outcome

    # -- what others may ask ---------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Requests that hold KV blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    def has_unfinished(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._requests)

    def has_work(self) -> bool:
        """True while there is a reason for a step: unfinished requests, or rows that the runner may free."""
        return bool(self._requests or self._finished_ids)

    def stats(self) -> SchedulerStats:
        """Gauges and totals of this moment."""
        pool = self.blocks.pool
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_preemptions=self._num_preemptions,
            num_evictions=pool.num_evictions,
            prefix_query_tokens=self.blocks.num_query_tokens,
            prefix_hit_tokens=self.blocks.num_hit_tokens,
        )

    def check_integrity(self) -> None:
        """Raise ServerError when queue, running set, block tables and pool disagree. For tests and debugging."""
        self.blocks.check_integrity()
        waiting, running = {r.request_id for r in self._waiting}, set(self._running)
        if waiting & running or waiting | running != set(self._requests):
            raise ServerError(f"waiting {sorted(waiting)} and running {sorted(running)} are not all requests")
        if self.blocks.owners() != running:
            raise ServerError(
                f"{sorted(self.blocks.owners() ^ running)} run without blocks, or have them idle"
            )
        if len(running) > self._max_running:
            raise ServerError(f"{len(running)} requests run; the limit is {self._max_running}")


def _uncomputed(request: Request) -> int:
    return request.num_uncomputed_tokens
