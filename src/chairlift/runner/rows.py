"""A permanent row of state per request: its tokens, its block table and its parameters, as columns of arrays.

A step's arrays are then gathers over these columns, and a step's message needs only ids and counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from chairlift.core.messages import NewRequest
from chairlift.ops.interface import Float32, Int32, UInt32, UInt64
from chairlift.sampling_params import SamplingParams

Bias = tuple[Int32, Float32]  # ids, distinct, and what is added to their logits; -inf bans

BAN_BIAS = -100.0  # a logit_bias at or below it bans the token, as OpenAI's API promises
NO_BIAS: Bias = (np.zeros(0, np.int32), np.zeros(0, np.float32))


class RequestRows:
    """State of at most `max_num_seqs` requests of at most `max_model_len` tokens.

    Every column of a row is written when a request takes it, so nothing of its last owner is left.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        width = max_model_len + 1  # the token sampled after a full context is kept too
        # np.zeros maps pages on first touch: long contexts cost memory only where they are used.
        self.token_ids: Int32 = np.zeros((max_num_seqs, width), np.int32)  # known, then drafts of the step
        self.num_tokens = np.zeros(max_num_seqs, np.int64)  # known
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self.block_tables: Int32 = np.zeros((max_num_seqs, -(-width // block_size)), np.int32)
        self.num_blocks = np.zeros(max_num_seqs, np.int64)

        # Parameters of one dtype lie together, [parameters, max_num_seqs], so that a step gathers them at once.
        self.float_params: Float32 = np.zeros((6, max_num_seqs), np.float32)
        self.temperature, self.top_p, self.min_p = self.float_params[:3]
        self.repetition_penalty, self.presence_penalty, self.frequency_penalty = self.float_params[3:]
        self.int_params: Int32 = np.zeros((3, max_num_seqs), np.int32)
        self.top_k, self.num_logprobs, self.num_prompt_logprobs = self.int_params  # logprobs: -1 = none
        self.seed: UInt64 = np.zeros(max_num_seqs, np.uint64)
        self.branch: UInt32 = np.zeros(max_num_seqs, np.uint32)
        self.stop_allowed_at = np.zeros(max_num_seqs, np.int64)  # position of the first token that may end it
        self.has_penalties = np.zeros(max_num_seqs, np.bool_)
        self.has_bias = np.zeros(max_num_seqs, np.bool_)  # or a min_tokens ban
        self.bias: list[Bias] = [NO_BIAS] * max_num_seqs
        self.bias_before_stop: list[Bias] = [NO_BIAS] * max_num_seqs  # with the bans of min_tokens

        self._row_of: dict[str, int] = {}
        self._free = list(range(max_num_seqs))[::-1]

    def __len__(self) -> int:
        return len(self._row_of)

    def row_of(self, request_id: str) -> int:
        """The row of a request; raises ValueError when it has none."""
        row = self._row_of.get(request_id)
        if row is None:
            raise ValueError(f"request {request_id!r} has no row: it was never sent as new, or was freed")
        return row

    def add(self, new: NewRequest) -> None:
        """Give a request a row; raises ValueError when it has one already, or no row or room is left."""
        if new.request_id in self._row_of:
            raise ValueError(f"request {new.request_id!r} already has a row")
        if not self._free:
            raise ValueError(f"no row for {new.request_id!r}: all {len(self.bias)} are taken (max_num_seqs)")
        count = len(new.token_ids)
        if count > self.max_model_len:
            raise ValueError(
                f"request {new.request_id!r} has {count} tokens, more than max_model_len {self.max_model_len}"
            )
        row = self._free.pop()
        self._row_of[new.request_id] = row
        self.token_ids[row, :count] = new.token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.block_tables[row, : self.num_blocks[row]] = 0  # unused entries are zero
        self.num_blocks[row] = 0
        self.append_blocks(row, new.block_ids)
        self._set_sampling(row, new)

    def free(self, request_ids: Iterable[str]) -> None:
        """Take rows back; an id without one (it ended while it waited) is fine."""
        for request_id in request_ids:
            row = self._row_of.pop(request_id, None)
            if row is not None:
                self._free.append(row)

    def append_blocks(self, row: int, block_ids: list[int] | tuple[int, ...]) -> None:
        """Extend a block table; raises ValueError beyond max_model_len."""
        start = int(self.num_blocks[row])
        end = start + len(block_ids)
        if end > self.block_tables.shape[1]:
            raise ValueError(f"{end} blocks are more than max_model_len {self.max_model_len} needs")
        self.block_tables[row, start:end] = block_ids
        self.num_blocks[row] = end

    def write_drafts(self, row: int, draft_token_ids: tuple[int, ...]) -> None:
        """Put drafts behind the known tokens, where the step reads them; raises ValueError beyond the context."""
        start = int(self.num_tokens[row])
        end = start + len(draft_token_ids)
        if end > self.max_model_len:
            raise ValueError(f"drafts reach position {end - 1}, beyond max_model_len {self.max_model_len}")
        self.token_ids[row, start:end] = draft_token_ids

    def _set_sampling(self, row: int, new: NewRequest) -> None:
        params = new.sampling_params
        self.temperature[row] = 0.0 if params.is_greedy else params.temperature
        self.top_k[row] = max(0, params.top_k)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition_penalty[row] = params.repetition_penalty
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.seed[row] = new.seed
        self.branch[row] = new.branch
        self.num_logprobs[row] = _count(params.logprobs)
        # A request that comes back with output has had the logprobs of its prompt.
        returns = len(new.token_ids) > new.num_prompt_tokens
        self.num_prompt_logprobs[row] = -1 if returns else _count(params.prompt_logprobs)
        self.stop_allowed_at[row] = new.num_prompt_tokens + params.min_tokens
        self.has_penalties[row] = _has_penalties(params)
        self.bias[row] = _bias(params, ())
        self.bias_before_stop[row] = self.bias[row]
        if params.min_tokens:
            eos = () if params.ignore_eos else new.eos_token_ids
            self.bias_before_stop[row] = _bias(params, (*eos, *params.stop_token_ids))
        self.has_bias[row] = len(self.bias_before_stop[row][0]) > 0


def _count(logprobs: int | None) -> int:
    return -1 if logprobs is None else logprobs


def _has_penalties(params: SamplingParams) -> bool:
    off = (1.0, 0.0, 0.0)
    return (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != off


def _bias(params: SamplingParams, banned: Iterable[int]) -> Bias:
    """Distinct ids and values of logit_bias, and `banned` ids at -inf."""
    merged = {i: -np.inf if value <= BAN_BIAS else value for i, value in params.logit_bias.items()}
    merged.update(dict.fromkeys(banned, -np.inf))
    if not merged:
        return NO_BIAS
    ids: npt.NDArray[np.int32] = np.fromiter(merged.keys(), np.int32, len(merged))
    return ids, np.fromiter(merged.values(), np.float32, len(merged))
