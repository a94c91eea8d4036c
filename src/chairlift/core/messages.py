"""What the scheduler and the runner say to each other, once a step. Standard library only, plain tuples and lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from chairlift.sampling_params import SamplingParams


@dataclass(slots=True)
class NewRequest:
    """A request that boards in this step, in full: fresh, resumed after a crash, or back from preemption."""

    request_id: str
    token_ids: list[int]  # every known token: the prompt, then output generated so far
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int  # unsigned 64-bit
    branch: int
    block_ids: list[int]  # the block table, cached prefix blocks included
    # KV already stored (prefix hits); the first row of this step is at this position.
    num_computed_tokens: int
    eos_token_ids: tuple[int, ...] = ()  # with stop_token_ids: what min_tokens bans until it is reached


class ScheduledRequest(NamedTuple):
    """One request's share of a step. New requests appear here too."""

    request_id: str
    num_scheduled_tokens: int  # rows of this step, drafts included; >= 1
    num_computed_tokens: int  # KV stored before this step
    new_block_ids: tuple[int, ...] = ()  # appended to its block table; new requests have theirs in full
    draft_token_ids: tuple[int, ...] = ()


class Preemption(NamedTuple):
    """A running request that gave its blocks back and will recompute."""

    request_id: str
    reason: str  # e.g. "kv blocks ran out for r7"
    num_computed_tokens: int  # KV lost


@dataclass(slots=True)
class SchedulerOutput:
    """Every decision of one step; the runner needs nothing else, and it is what explains the step later.

    The runner frees the rows of `finished_request_ids` and `preempted` before it makes those of `new_requests`:
    an id may leave and come back in one step.
    """

    step: int
    new_requests: list[NewRequest] = field(default_factory=list)
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)  # (from, to), before the forward pass
    finished_request_ids: list[str] = field(default_factory=list)  # since the last step: free their rows
    preempted: list[Preemption] = field(default_factory=list)
    num_scheduled_tokens: int = 0
    token_budget: int = 0
    num_running: int = 0
    num_waiting: int = 0

    @property
    def is_empty(self) -> bool:
        """True when no token is to be computed (there may still be rows to free)."""
        return not self.scheduled


class TokenLogprobs(NamedTuple):
    """Logprobs at one position: the token taken, and the most likely ones (logit descending, id ascending)."""

    token_id: int
    logprob: float
    rank: int  # 1 = most likely
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one step computed, by request id. A request whose prefill is unfinished has no sampled token."""

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    # Beside each sampled token, if asked.
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    # For prompt positions i of this step's rows whose successor is a prompt token: logprob of token i + 1.
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)  # proposals for the next step
    # Where the time went, in seconds.
    prepare_s: float = 0.0  # rows of state and the step's arrays
    upload_s: float = 0.0  # checking them and handing them to the backend
    forward_s: float = 0.0  # the forward pass: all that is not overhead
    sample_s: float = 0.0  # drawing tokens and writing them down


class RequestResult(NamedTuple):
    """What one step brought to one request, as `Scheduler.update` returns it."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None  # "stop", "length" or None while it goes on
    stop_reason: int | None  # the stop token id when one of stop_token_ids ended it; None for EOS
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None
    num_cached_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges, and totals since the scheduler was made."""

    num_running: int
    num_waiting: int  # preempted ones included
    num_blocks: int
    num_free_blocks: int  # without key and references
    num_cached_blocks: int  # without references, evictable
    num_preemptions: int
    num_evictions: int
    prefix_query_tokens: int  # of requests boarding for the first time: tokens looked up in the prefix cache
    prefix_hit_tokens: int  # of those, found
