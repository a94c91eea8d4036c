"""What to draw or score in a step, and what came of it, in plain Python numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chairlift.core.messages import ModelRunnerOutput, TokenLogprobs
from chairlift.ops.interface import Float32, Int32, SampleBatch, SampleResult
from chairlift.runner.batch import StepBatch
from chairlift.runner.rows import NO_BIAS, Bias, RequestRows

MIN_LOGPROB = -9999.0  # what -inf becomes, so that every number has a place in JSON


def build_sample_batch(step: StepBatch, state: RequestRows) -> SampleBatch:
    """One entry for each logits row of the step, in their order."""
    rows, positions, is_prompt = step.logits_row, step.logits_positions, step.is_prompt
    following = state.token_ids[rows, positions + 1]  # of a prompt row, the token to score
    bias_start, bias_ids, bias_values = _biases(step, state)
    history_start, history_ids = _histories(step, state)
    has_history = np.diff(history_start) > 0
    return SampleBatch(
        rows=np.arange(len(rows), dtype=np.int32),
        target=np.where(is_prompt, following, np.int32(-1)),
        temperature=state.temperature[rows],
        top_k=state.top_k[rows],
        top_p=state.top_p[rows],
        min_p=state.min_p[rows],
        repetition_penalty=state.repetition_penalty[rows],
        presence_penalty=state.presence_penalty[rows],
        frequency_penalty=state.frequency_penalty[rows],
        seed=state.seed[rows],
        branch=state.branch[rows],
        position=(positions + 1).astype(np.uint32),
        num_logprobs=np.where(is_prompt, state.num_prompt_logprobs[rows], state.num_logprobs[rows]),
        bias_start=bias_start,
        bias_ids=bias_ids,
        bias_values=bias_values,
        history_start=history_start,
        history_prompt_len=np.where(has_history, state.num_prompt_tokens[rows], 0).astype(np.int32),
        history_ids=history_ids,
    )


def take_result(
    result: SampleResult, asked: SampleBatch, step: StepBatch, state: RequestRows
) -> ModelRunnerOutput:
    """Append the drawn tokens to the rows of their requests and say what was drawn and scored."""
    kept = ~step.is_prompt
    if step.num_drafts:
        kept &= _accepted(result.token_ids, step, state)
    rows, positions = step.logits_row[kept], step.logits_positions[kept]
    state.token_ids[rows, positions + 1] = result.token_ids[kept]
    np.add.at(state.num_tokens, rows, 1)
    return _output(result.token_ids.tolist(), _token_logprobs(result, asked), step, kept)


def _biases(step: StepBatch, state: RequestRows) -> tuple[Int32, Int32, Float32]:
    """CSR lists of biases and bans: (start, ids, values)."""
    lists: list[Bias] = [NO_BIAS] * len(step.logits_row)
    for i in np.flatnonzero(state.has_bias[step.logits_row] & ~step.is_prompt).tolist():
        row = step.logits_row[i]
        early = step.logits_positions[i] + 1 < state.stop_allowed_at[row]
        lists[i] = state.bias_before_stop[row] if early else state.bias[row]
    return (
        _starts([len(ids) for ids, _ in lists]),
        np.concatenate([ids for ids, _ in lists]),
        np.concatenate([values for _, values in lists]),
    )


def _histories(step: StepBatch, state: RequestRows) -> tuple[Int32, Int32]:
    """CSR lists of the tokens before the drawn one, drafts included, for rows with penalties: (start, ids)."""
    lists: list[Int32] = [NO_BIAS[0]] * len(step.logits_row)
    for i in np.flatnonzero(state.has_penalties[step.logits_row] & ~step.is_prompt).tolist():
        lists[i] = state.token_ids[step.logits_row[i], : step.logits_positions[i] + 1]
    return _starts([len(ids) for ids in lists]), np.concatenate(lists)


def _starts(lengths: list[int]) -> Int32:
    start = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=start[1:])
    return start


def _accepted(drawn: Int32, step: StepBatch, state: RequestRows) -> npt.NDArray[np.bool_]:
    """Which draws stand: the first of a request, and each after a draft that equals the draw before it."""
    rows, request = step.logits_row, step.logits_request
    is_same = np.zeros(len(drawn), np.bool_)  # row i reads the very token that was drawn before it
    is_same[1:] = state.token_ids[rows[1:], step.logits_positions[1:]] == drawn[:-1]
    is_first = np.ones(len(drawn), np.bool_)
    is_first[1:] = (request[1:] != request[:-1]) | step.is_prompt[:-1]
    # Within a request a draw stands if no row since its first one differs: compare running counts of differences.
    differs = np.cumsum(~(is_same | is_first))
    before = np.maximum.accumulate(np.where(is_first, differs, 0))
    stands: npt.NDArray[np.bool_] = differs == before
    return stands


def _output(
    tokens: list[int], entries: dict[int, TokenLogprobs], step: StepBatch, kept: npt.NDArray[np.bool_]
) -> ModelRunnerOutput:
    output = ModelRunnerOutput()
    flags = zip(step.logits_request.tolist(), step.is_prompt.tolist(), kept.tolist(), strict=True)
    for i, (request, is_prompt, is_kept) in enumerate(flags):
        name = step.scheduled[request].request_id
        if is_kept:
            output.sampled_token_ids.setdefault(name, []).append(tokens[i])
        if i in entries and (is_kept or is_prompt):
            where = output.prompt_logprobs if is_prompt else output.logprobs
            where.setdefault(name, []).append(entries[i])
    return output


def _token_logprobs(result: SampleResult, asked: SampleBatch) -> dict[int, TokenLogprobs]:
    """The logprobs of the entries that asked for them."""
    wanted = np.flatnonzero(asked.num_logprobs >= 0).tolist()
    if not wanted:
        return {}
    tokens, ranks, top_ids = result.token_ids.tolist(), result.ranks.tolist(), result.top_ids.tolist()
    logprobs = np.fmax(result.logprobs, MIN_LOGPROB).tolist()
    top_logprobs = np.fmax(result.top_logprobs, MIN_LOGPROB).tolist()
    counts = asked.num_logprobs.tolist()
    return {
        i: TokenLogprobs(
            tokens[i],
            logprobs[i],
            ranks[i],
            tuple(top_ids[i][: counts[i]]),
            tuple(top_logprobs[i][: counts[i]]),
        )
        for i in wanted
    }
