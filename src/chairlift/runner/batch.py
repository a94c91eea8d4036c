"""From the scheduler's words to a step's arrays: gathers over the rows, with no Python per token and no padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chairlift.core.messages import ScheduledRequest
from chairlift.ops.interface import RaggedBatch
from chairlift.runner.rows import RequestRows

Int = npt.NDArray[np.int64]


@dataclass(slots=True)
class StepBatch:
    """A `RaggedBatch`, and what each of its logits rows is for.

    A logits row at position p either scores prompt token p + 1 (`is_prompt`) or draws token p + 1. Rows of one
    request are adjacent: first prompt rows, then those that draw, one more than it has drafts.
    """

    ragged: RaggedBatch
    scheduled: list[ScheduledRequest]  # [num_reqs]
    rows: Int  # [num_reqs] row of state of each request
    logits_request: Int  # [num_logits] index of the request
    logits_row: Int  # [num_logits] its row of state
    logits_positions: Int  # [num_logits]
    is_prompt: npt.NDArray[np.bool_]  # [num_logits]
    num_drafts: int  # of all requests
    num_prompt_rows: int  # logits rows that score


def build_step(scheduled: list[ScheduledRequest], state: RequestRows) -> StepBatch:
    """Build a step's arrays, extending block tables and writing drafts into the rows first.

    Raises:
        ValueError: a request has no row, more rows than tokens, or a block table that is too short.
    """
    shares = [
        (
            _update_row(request, state),
            request.num_scheduled_tokens,
            request.num_computed_tokens,
            len(request.draft_token_ids),
        )
        for request in scheduled
    ]
    rows, counts, first, drafts = np.ascontiguousarray(np.array(shares, np.int64).T)  # [num_reqs] each
    seq_lens = first + counts
    _check(scheduled, seq_lens, state.num_tokens[rows] + drafts, state.num_blocks[rows] * state.block_size)

    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    request_of = np.repeat(np.arange(len(rows)), counts)  # [num_tokens]
    row_of = rows[request_of]  # [num_tokens]
    positions = np.arange(start[-1]) + (first - start[:-1])[request_of]

    size = state.block_size
    width = -(-int(seq_lens.max()) // size)
    blocks = state.block_tables[row_of, positions // size].astype(np.int64)

    draws = positions >= state.num_tokens[row_of] - 1
    asked = state.num_prompt_logprobs[row_of] >= 0
    scores = asked & (positions + 1 < state.num_prompt_tokens[row_of])
    logits = np.flatnonzero(draws | scores)  # [num_logits]
    is_prompt = scores[logits]
    ragged = RaggedBatch(
        input_ids=state.token_ids[row_of, positions],
        positions=positions.astype(np.int32),
        query_start_loc=start.astype(np.int32),
        seq_lens=seq_lens.astype(np.int32),
        block_tables=np.ascontiguousarray(state.block_tables[rows, :width]),
        slot_mapping=blocks * size + positions % size,
        logits_indices=logits.astype(np.int32),
    )
    return StepBatch(
        ragged=ragged,
        scheduled=scheduled,
        rows=rows,
        logits_request=request_of[logits],
        logits_row=row_of[logits],
        logits_positions=positions[logits],
        is_prompt=is_prompt,
        num_drafts=int(drafts.sum()),
        num_prompt_rows=int(np.count_nonzero(is_prompt)),
    )


def _update_row(request: ScheduledRequest, state: RequestRows) -> int:
    row = state.row_of(request.request_id)
    if request.new_block_ids:
        state.append_blocks(row, request.new_block_ids)
    if request.draft_token_ids:
        state.write_drafts(row, request.draft_token_ids)
    return row


def _check(scheduled: list[ScheduledRequest], seq_lens: Int, known: Int, held: Int) -> None:
    """A step must not run past the tokens that are known or drafted, nor past the blocks that are held."""
    wrong = np.flatnonzero((seq_lens > known) | (seq_lens > held))
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f"request {scheduled[i].request_id!r} is to be computed up to {seq_lens[i]} tokens; "
            f"it has {known[i]} tokens, drafts included, and blocks for {held[i]}"
        )
