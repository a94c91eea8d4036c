"""The step that is being planned: what is left of its token budget, and who got which share."""

from __future__ import annotations

from collections import deque

from chairlift.core.messages import NewRequest, Preemption, ScheduledRequest, SchedulerOutput
from chairlift.core.request import Request


class StepPlan:
    """Shares of one step's token budget, and what the scheduler keeps in mind while it hands them out."""

    __slots__ = (
        "boarded",
        "budget",
        "held",
        "left",
        "now",
        "oldest_prefill",
        "preempted",
        "shares",
        "shortest_first",
        "spare_blocks",
    )

    def __init__(self, budget: int, now: float) -> None:
        self.budget = budget
        self.now = now
        self.left = budget
        self.held = 0  # tokens of `left` that are promised to somebody
        self.shares: dict[Request, ScheduledRequest] = {}  # in the order of scheduling
        self.boarded: dict[Request, list[int]] = {}  # newcomers of this step and their block tables
        self.preempted: list[Preemption] = []
        self.oldest_prefill: Request | None = None
        self.shortest_first: deque[Request] = deque()  # running prefills that got nothing yet
        self.spare_blocks = 0  # available to newcomers: what running requests will need soon is taken off

    @property
    def unpromised(self) -> int:
        """Tokens that anybody may take."""
        return self.left - self.held

    def add(self, request: Request, num_tokens: int, new_block_ids: tuple[int, ...]) -> None:
        """Give `request` its next `num_tokens` tokens; those beyond the known ones are drafts."""
        drafts = request.draft_token_ids
        if drafts:
            drafts = drafts[: max(0, num_tokens - request.num_uncomputed_tokens)]
        self.left -= num_tokens
        self.shares[request] = ScheduledRequest(
            request.request_id,
            num_tokens,
            request.num_computed_tokens,
            new_block_ids,
            drafts,
        )

    def board(self, request: Request, num_tokens: int, block_table: list[int]) -> None:
        """`add` for a newcomer, whose whole table is new to the runner."""
        self.add(request, num_tokens, ())
        self.boarded[request] = block_table

    def preempt(self, victim: Request, reason: str) -> None:
        """Note a preemption, and take back the share that the victim may have got already in this step."""
        share = self.shares.pop(victim, None)
        if share is not None:
            self.left += share.num_scheduled_tokens
        self.preempted.append(Preemption(victim.request_id, reason, victim.num_computed_tokens))

    def output(self, step: int) -> SchedulerOutput:
        """The plan as a message; the scheduler fills in what it alone knows."""
        return SchedulerOutput(
            step=step,
            new_requests=[_in_full(request, table) for request, table in self.boarded.items()],
            scheduled=list(self.shares.values()),
            preempted=self.preempted,
            num_scheduled_tokens=self.budget - self.left,
            token_budget=self.budget,
        )


def _in_full(request: Request, block_table: list[int]) -> NewRequest:
    return NewRequest(
        request_id=request.request_id,
        token_ids=list(request.token_ids),  # a copy: both sides append to theirs
        num_prompt_tokens=request.num_prompt_tokens,
        sampling_params=request.sampling_params,
        seed=request.seed,
        branch=request.branch,
        block_ids=block_table,
        num_computed_tokens=request.num_computed_tokens,
        eos_token_ids=request.eos_token_ids,
    )
