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
    floats = state.float_params.take(rows, axis=1)
    top_k, num_logprobs, num_prompt_logprobs = state.int_params.take(rows, axis=1)
    target = np.full(len(rows), -1, np.int32)
    if step.num_prompt_rows:  # they score the token that follows
        np.copyto(target, state.token_ids[rows, positions + 1], where=is_prompt)
        np.copyto(num_logprobs, num_prompt_logprobs, where=is_prompt)
    bias_start, bias_ids, bias_values = _biases(step, state)
    history_start, history_prompt_len, history_ids = _histories(step, state)
    return SampleBatch(
        rows=np.arange(len(rows), dtype=np.int32),
        target=target,
        temperature=floats[0],
        top_k=top_k,
        top_p=floats[1],
        min_p=floats[2],
        repetition_penalty=floats[3],
        presence_penalty=floats[4],
        frequency_penalty=floats[5],
        seed=state.seed[rows],
        branch=state.branch[rows],
        position=(positions + 1).astype(np.uint32),
        num_logprobs=num_logprobs,
        bias_start=bias_start,
        bias_ids=bias_ids,
        bias_values=bias_values,
        history_start=history_start,
        history_prompt_len=history_prompt_len,
        history_ids=history_ids,
    )


def take_result(
    result: SampleResult, asked: SampleBatch, step: StepBatch, state: RequestRows
) -> ModelRunnerOutput:
    """Append the drawn tokens to the rows of their requests and say what was drawn and scored."""
    kept = ~step.is_prompt
    if step.num_drafts:
        kept &= _accepted(result.token_ids, step, state)
    rows, positions, drawn = step.logits_row, step.logits_positions, result.token_ids
    if step.num_drafts or step.num_prompt_rows:
        rows, positions, drawn = rows[kept], positions[kept], drawn[kept]
    state.token_ids[rows, positions + 1] = drawn
    np.add.at(state.num_tokens, rows, 1)
    return _output(result, asked, step, kept)


def _biases(step: StepBatch, state: RequestRows) -> tuple[Int32, Int32, Float32]:
    """CSR lists of biases and bans: (start, ids, values)."""
    flagged = np.flatnonzero(state.has_bias[step.logits_row] & ~step.is_prompt).tolist()
    if not flagged:
        return np.zeros(len(step.logits_row) + 1, np.int32), *NO_BIAS
    lists: list[Bias] = [NO_BIAS] * len(step.logits_row)
    for i in flagged:
        row = step.logits_row[i]
        early = step.logits_positions[i] + 1 < state.stop_allowed_at[row]
        lists[i] = state.bias_before_stop[row] if early else state.bias[row]
    return (
        _starts([len(ids) for ids, _ in lists]),
        np.concatenate([ids for ids, _ in lists]),
        np.concatenate([values for _, values in lists]),
    )


def _histories(step: StepBatch, state: RequestRows) -> tuple[Int32, Int32, Int32]:
    """For rows with penalties, the tokens before the drawn one, drafts included: (CSR start, prompt lengths, ids)."""
    count = len(step.logits_row)
    prompt_len: Int32 = np.zeros(count, np.int32)
    flagged = np.flatnonzero(state.has_penalties[step.logits_row] & ~step.is_prompt)
    if not len(flagged):
        return np.zeros(count + 1, np.int32), prompt_len, NO_BIAS[0]
    prompt_len[flagged] = state.num_prompt_tokens[step.logits_row[flagged]]
    lists: list[Int32] = [NO_BIAS[0]] * count
    for i in flagged.tolist():
        lists[i] = state.token_ids[step.logits_row[i], : step.logits_positions[i] + 1]
    return _starts([len(ids) for ids in lists]), prompt_len, np.concatenate(lists)


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
    result: SampleResult, asked: SampleBatch, step: StepBatch, kept: npt.NDArray[np.bool_]
) -> ModelRunnerOutput:
    output = ModelRunnerOutput()
    names = [step.scheduled[request].request_id for request in step.logits_request.tolist()]
    for name, token_id, is_kept in zip(names, result.token_ids.tolist(), kept.tolist(), strict=True):
        if is_kept:
            output.sampled_token_ids.setdefault(name, []).append(token_id)
    for i, entry in _token_logprobs(result, asked).items():
        if step.is_prompt[i]:
            output.prompt_logprobs.setdefault(names[i], []).append(entry)
        elif kept[i]:
            output.logprobs.setdefault(names[i], []).append(entry)
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
