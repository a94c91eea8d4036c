"""Checks of a step's arrays, for every backend: a kernel must never read outside them, whoever built them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chairlift.ops.interface import RaggedBatch, SampleBatch


def check_batch(batch: RaggedBatch, max_num_tokens: int, max_num_logits: int) -> None:
    """Refuse a batch that is not what `RaggedBatch` says.

    Token ids, slots and block ids are checked where their limits are known (`embed`, `rope_and_store`, `attention`).

    Raises:
        ValueError: a shape, dtype, order or size is wrong; the message names the field.
    """
    n, reqs = batch.num_tokens, batch.num_reqs
    _check_array("input_ids", batch.input_ids, np.int32, (n,))
    _check_array("positions", batch.positions, np.int32, (n,))
    _check_array("slot_mapping", batch.slot_mapping, np.int64, (n,))
    _check_array("query_start_loc", batch.query_start_loc, np.int32, (reqs + 1,))
    _check_array("seq_lens", batch.seq_lens, np.int32, (reqs,))
    _check_array("logits_indices", batch.logits_indices, np.int32, (len(batch.logits_indices),))
    if batch.block_tables.ndim != 2:
        raise ValueError(f"block_tables has {batch.block_tables.ndim} dimensions, not 2")
    _check_array("block_tables", batch.block_tables, np.int32, (reqs, batch.block_tables.shape[1]))
    _check_room("tokens", n, max_num_tokens)
    _check_room("rows of logits", len(batch.logits_indices), max_num_logits)
    _check_rows(batch)


def check_sample_batch(request: SampleBatch, num_logits: int, vocab_size: int) -> None:
    """Refuse a sampling request that points outside the logits, the vocabulary or its own lists.

    Raises:
        ValueError: the message names the field.
    """
    n = len(request.rows)
    for name in _PER_ENTRY:
        if getattr(request, name).shape != (n,):
            raise ValueError(f"{name} has shape {getattr(request, name).shape}, not ({n},)")
    check_range("rows", request.rows, 0, num_logits)
    check_range("target", request.target, -1, vocab_size)
    _check_csr("bias_start", request.bias_start, n, len(request.bias_ids))
    _check_csr("history_start", request.history_start, n, len(request.history_ids))
    if len(request.bias_values) != len(request.bias_ids):
        raise ValueError(f"{len(request.bias_values)} bias_values for {len(request.bias_ids)} bias_ids")
    check_range("bias_ids", request.bias_ids, 0, vocab_size)
    check_range("history_ids", request.history_ids, 0, vocab_size)
    lengths = np.diff(request.history_start)
    if ((request.history_prompt_len < 0) | (request.history_prompt_len > lengths)).any():
        raise ValueError("history_prompt_len must lie between 0 and the entry's history")


def check_range(name: str, values: npt.NDArray[np.integer], low: int, high: int) -> None:
    """Refuse values outside `[low, high)`; raises ValueError naming the array and what it holds."""
    if len(values) and not (low <= values.min() and values.max() < high):
        raise ValueError(f"{name} has values in [{values.min()}, {values.max()}], outside [{low}, {high})")


_PER_ENTRY = (
    *("target", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("seed", "branch", "position", "num_logprobs", "history_prompt_len"),
)


def _check_array(name: str, array: npt.NDArray[np.generic], dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} is {array.dtype} {array.shape}; it must be C-contiguous {np.dtype(dtype)} {shape}"
        )


def _check_room(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(f"the step has {count} {what}, more than the {limit} that the arena was sized for")


def _check_csr(name: str, start: npt.NDArray[np.integer], entries: int, total: int) -> None:
    if len(start) != entries + 1 or start[0] != 0 or start[-1] != total or (np.diff(start) < 0).any():
        raise ValueError(f"{name} must rise from 0 to {total} in {entries + 1} steps")


def _check_rows(batch: RaggedBatch) -> None:
    """Rows of a request are adjacent and at rising positions that end at its length."""
    start, lens = batch.query_start_loc, batch.seq_lens
    counts = np.diff(start)
    if start[0] != 0 or start[-1] != batch.num_tokens or (counts < 1).any():
        raise ValueError(f"query_start_loc must rise from 0 to {batch.num_tokens}, each request with a row")
    first = lens - counts  # the position of each request's first row
    row = np.arange(batch.num_tokens, dtype=np.int32)
    if (first < 0).any() or not np.array_equal(batch.positions, np.repeat(first - start[:-1], counts) + row):
        raise ValueError("positions of a request must be consecutive and end at seq_lens - 1")
    check_range("logits_indices", batch.logits_indices, 0, batch.num_tokens)
    if (np.diff(batch.logits_indices) <= 0).any():
        raise ValueError("logits_indices must ascend")
