"""Sampling, written plainly: one entry at a time, every truncation and the draw on exact integers.

A weight is `exp(logit - largest)` as f32, then `floor(weight * 2^40)` as an integer, so sums are exact in any order
and a vectorised kernel can give the same token. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3" (2011).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from chairlift.ops.interface import Float32, SampleBatch, SampleResult

Int64 = npt.NDArray[np.int64]

FIXED_ONE = 2.0**40  # the integer weight of the most likely token
_WORD = 0xFFFFFFFF


def sample_rows(logits: Float32, request: SampleBatch) -> SampleResult:
    """Draw or score each entry; logits: `[num_logits, vocab]`, raw and left unchanged."""
    result = SampleResult.blank(request)
    for i in range(len(request.rows)):
        row = logits[request.rows[i]]
        row = np.where(
            np.isnan(row), np.float32(-np.inf), row
        )  # [vocab]; never taken, whatever it stands for
        target = int(request.target[i])
        token = target if target >= 0 else _choose(adjusted_logits(row, request, i), request, i)
        result.token_ids[i] = token
        if request.num_logprobs[i] >= 0:
            _score(row, token, int(request.num_logprobs[i]), result, i)
    return result


def adjusted_logits(row: Float32, request: SampleBatch, i: int) -> Float32:
    """Logits of entry i after bias, bans and penalties: f32 `[vocab]`, a copy."""
    row = row.copy()
    bias = slice(request.bias_start[i], request.bias_start[i + 1])
    row[request.bias_ids[bias]] += request.bias_values[bias]  # ids of an entry are distinct
    history = request.history_ids[request.history_start[i] : request.history_start[i + 1]]
    seen = np.unique(history)
    factor = request.repetition_penalty[i]
    row[seen] = np.where(row[seen] > 0, row[seen] / factor, row[seen] * factor)
    output, times = np.unique(history[request.history_prompt_len[i] :], return_counts=True)
    row[output] -= request.frequency_penalty[i] * times.astype(np.float32)
    row[output] -= request.presence_penalty[i]
    return row


def ordered(row: Float32) -> Int64:
    """Token ids by (logit descending, id ascending)."""
    return np.argsort(-row, kind="stable")


def fixed_weights(scaled: Float32) -> tuple[Float32, Int64]:
    """Weights of logits that are already divided by the temperature: f32 and integer, `[vocab]` each."""
    weights = np.exp((scaled - scaled.max()).astype(np.float64)).astype(np.float32)
    return weights, np.floor(weights.astype(np.float64) * FIXED_ONE).astype(np.int64)


def philox_uniform(seed: int, branch: int, position: int) -> int:
    """64 random bits of (seed, branch, position): the first two words of one Philox4x32-10 block."""
    key0, key1 = seed & _WORD, seed >> 32
    c0, c1, c2, c3 = position, branch, 0, 0
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c2 = (product1 >> 32) ^ c1 ^ key0, (product0 >> 32) ^ c3 ^ key1
        c1, c3 = product1 & _WORD, product0 & _WORD
        key0, key1 = (key0 + 0x9E3779B9) & _WORD, (key1 + 0xBB67AE85) & _WORD
    return c0 | c1 << 32


def kept_tokens(scaled: Float32, top_k: int, top_p: float, min_p: float) -> tuple[Int64, list[int]]:
    """Tokens that survive top-k, top-p and min-p in their order, and their integer weights."""
    weights, fixed = fixed_weights(scaled)
    order = ordered(scaled)
    if 0 < top_k < len(order):
        order = order[:top_k]
    if top_p < 1.0:
        sums = np.cumsum(fixed[order])
        needed = math.ceil(top_p * float(sums[-1]))
        order = order[: max(1, int(np.searchsorted(sums, needed)) + 1)]
    if min_p > 0.0:  # the largest weight is exactly 1
        order = order[weights[order] >= np.float32(min_p)]
    return order, [int(value) for value in fixed[order]]


def _choose(row: Float32, request: SampleBatch, i: int) -> int:
    """Temperature, truncations and draw on the adjusted logits of entry i."""
    if request.temperature[i] == 0:
        return int(np.argmax(row))
    scaled = row / request.temperature[i]
    if not np.isfinite(scaled.max()):  # all banned: the lowest id, rather than NaN
        return int(np.argmax(scaled))
    order, weights = kept_tokens(
        scaled, int(request.top_k[i]), float(request.top_p[i]), float(request.min_p[i])
    )
    bits = philox_uniform(int(request.seed[i]), int(request.branch[i]), int(request.position[i]))
    target = (bits * sum(weights)) >> 64
    return int(order[bisect_right(list(accumulate(weights)), target)])  # the first sum above the target


def _score(row: Float32, token: int, top: int, result: SampleResult, i: int) -> None:
    """Fill entry i with the token's logprob and rank and the `top` most likely tokens, from raw logits."""
    wide = row.astype(np.float64)
    largest = wide.max()
    logprobs = wide - (largest + np.log(np.sum(np.exp(wide - largest))))
    ahead = (row > row[token]).sum() + (row[:token] == row[token]).sum()
    result.logprobs[i] = logprobs[token]
    result.ranks[i] = 1 + ahead
    best = ordered(row)[:top]
    result.top_ids[i, : len(best)] = best
    result.top_logprobs[i, : len(best)] = logprobs[best]
