"""What crosses the border between the front end and the engine, and what the front end gives to its callers.

Wire types are msgspec structs (arrays on the wire); results for Python users are dataclasses with vLLM's shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from chairlift.core.messages import TokenLogprobs
from chairlift.sampling_params import SamplingParams


# -- front end -> engine -------------------------------------------------------------------------------------
class EngineRequest(msgspec.Struct, frozen=True, array_like=True):
    """One stream of tokens. With `output_token_ids` it is the call that resumes after a crash."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    seed: int  # unsigned 64-bit, drawn by the front end when the user gave none
    branch: int = 0
    eos_token_ids: tuple[int, ...] = ()  # empty when ignore_eos
    output_token_ids: list[int] = []
    arrival_time: float = 0.0  # seconds, time.monotonic() of the front end


# -- engine -> front end -------------------------------------------------------------------------------------
class TokenUpdate(msgspec.Struct, array_like=True):
    """What one step brought to one request."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None  # stop | length | abort | error
    stop_reason: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None  # set with finish_reason "error": why the engine refused or dropped it
    error_code: str | None = None  # class name in chairlift.errors


class StepStats(msgspec.Struct, array_like=True):
    """Counters and gauges after one step; totals count since the engine started."""

    num_running: int = 0
    num_waiting: int = 0
    num_kv_blocks: int = 0
    num_free_blocks: int = 0  # free or cached-but-evictable
    num_cached_blocks: int = 0
    num_preemptions_total: int = 0
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    schedule_s: float = 0.0  # of this step
    execute_s: float = 0.0
    update_s: float = 0.0
    prepare_s: float = 0.0  # these four are parts of execute_s; see ModelRunnerOutput
    upload_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0


class StepRow(msgspec.Struct, array_like=True):
    """One request's share of the step: the stuff that timelines and lane charts are made of."""

    request_id: str
    num_scheduled_tokens: int
    num_computed_tokens: int
    is_new: bool = False


class StepFrame(msgspec.Struct, array_like=True, tag="step"):
    """The one outgoing frame of a step: results, and the step's record."""

    step: int
    started_at: float  # engine's time.monotonic()
    finished_at: float
    updates: list[TokenUpdate] = []
    stats: StepStats = msgspec.field(default_factory=StepStats)
    rows: list[StepRow] = []
    preempted: list[tuple[str, str]] = []  # (request_id, reason)


class EngineInfo(msgspec.Struct, frozen=True):
    """What was resolved at start; the engine sends it once when it is ready."""

    model_name: str
    vocab_size: int
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int
    kv_cache_dtype: str
    backend: str  # cpu | reference
    details: dict[str, str] = {}  # isa, threads, memory, ... for `env` and the start banner
    notices: list[str] = []  # e.g. "max_model_len clamped to 4096: the KV pool holds 256 blocks"


# -- front end -> its callers (vLLM's shapes) ----------------------------------------------------------------
@dataclass(slots=True)
class Logprob:
    """One candidate at one position."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionDelta:
    """What is new for one choice; `text` never holds half a character or a possible start of a stop string."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None  # stop | length | abort, on the last delta only
    stop_reason: int | str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One finished (or growing) choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """Everything about one call of `generate`: the prompt and its `n` outputs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    metrics: dict[str, Any] | None = None
