"""One stream of tokens and its counters. Only the scheduler changes a request after it was added."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from chairlift.core.messages import TokenLogprobs
from chairlift.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Where a request is. It holds KV blocks only while RUNNING."""

    WAITING = "waiting"  # in the queue, never ran
    RUNNING = "running"  # has a block table, and a row of state in the runner
    PREEMPTED = "preempted"  # back at the front of the queue; will recompute
    FINISHED = "finished"  # ended or aborted; the scheduler has forgotten it


class Request:
    """One stream of tokens: what was asked, every token known so far, and how much of it has KV.

    `num_computed_tokens` chases `num_tokens`; that difference is all that prefill, chunked prefill, decode
    and recompute are. Giving `output_token_ids` resumes a request that another engine began: they are
    computed again like prompt tokens (or found in the prefix cache) and count for min and max tokens.
    """

    __slots__ = (
        "arrival_time",
        "block_keys",
        "branch",
        "cache_salt",
        "draft_token_ids",
        "eos_token_ids",
        "finish_reason",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "prompt_logprobs",
        "request_id",
        "sampling_params",
        "seed",
        "status",
        "stop_reason",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        seed: int,
        branch: int = 0,
        eos_token_ids: Sequence[int] = (),
        output_token_ids: Sequence[int] = (),
        arrival_time: float = 0.0,
        cache_salt: str = "",
    ) -> None:
        self.request_id = request_id
        self.token_ids = [*prompt_token_ids, *output_token_ids]
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling_params = sampling_params
        self.seed = seed
        self.branch = branch
        self.eos_token_ids = tuple(eos_token_ids)
        self.stop_token_ids = frozenset(sampling_params.stop_token_ids)
        self.arrival_time = arrival_time
        self.cache_salt = cache_salt  # enters every block key: requests with different salts share no block

        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0  # KV stored
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache at the first admission
        self.num_preemptions = 0
        self.max_total_tokens = 0  # prompt + output never exceed it; set when the request is added
        self.block_keys: list[bytes] = []  # of its full blocks, in order
        self.draft_token_ids: tuple[int, ...] = ()  # proposals to verify in the next step
        self.finish_reason: str | None = None  # "stop", "length" or "abort"
        self.stop_reason: int | None = None  # the stop token id when one of stop_token_ids ended it
        # Collected over chunks, handed out once, then None. Whoever resumes with output already has them.
        asked = sampling_params.prompt_logprobs is not None and not output_token_ids
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if asked else None

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated, those given on resuming included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens without KV: 1 for a request that is decoding, more while it is prefilling."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    def append_token(self, token_id: int) -> None:
        """Append a sampled token and set `finish_reason` if it is the last one. A stop beats "length"."""
        self.token_ids.append(token_id)
        # The sampler bans stop tokens while fewer than min_tokens are out, so one that comes is past them.
        if self.num_output_tokens > self.sampling_params.min_tokens and self._stops(token_id):
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_total_tokens:
            self.finish_reason = "length"

    def _stops(self, token_id: int) -> bool:
        if token_id in self.eos_token_ids and not self.sampling_params.ignore_eos:
            return True
        if token_id in self.stop_token_ids:
            self.stop_reason = token_id
            return True
        return False

    def acceptable(self, draft_token_ids: Sequence[int]) -> tuple[int, ...]:
        """The drafts that could all be accepted, and a token after them, within the length limit."""
        room = self.max_total_tokens - len(self.token_ids) - 1
        return tuple(draft_token_ids[: max(0, room)])

    def collect_prompt_logprobs(self, start: int, entries: Sequence[TokenLogprobs]) -> None:
        """Add the entries of a chunk that began at position `start`; a recomputed chunk adds nothing twice.

        The entry of position i tells the logprob of token i + 1, so a prompt has one entry less than tokens.
        """
        if self.prompt_logprobs is not None:  # None: not asked, or handed out before a preemption
            self.prompt_logprobs.extend(entries[len(self.prompt_logprobs) - start :])

    def take_prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """The entries of the whole prompt, once, when all of it is computed; None before and after."""
        collected = self.prompt_logprobs
        if collected is None or self.num_computed_tokens < self.num_prompt_tokens:
            return None
        self.prompt_logprobs = None
        return collected

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, {self.num_prompt_tokens} prompt + "
            f"{self.num_output_tokens} output tokens, {self.num_computed_tokens} computed)"
        )
