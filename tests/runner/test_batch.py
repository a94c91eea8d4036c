"""The arrays of a step, by a worked example."""

from __future__ import annotations

import numpy as np

from chairlift.core.messages import NewRequest, ScheduledRequest
from chairlift.ops.batch_check import check_batch
from chairlift.ops.interface import SampleResult
from chairlift.runner.batch import StepBatch, build_step
from chairlift.runner.rows import RequestRows
from chairlift.runner.sampler import MIN_LOGPROB, build_sample_batch, take_result
from chairlift.sampling_params import SamplingParams


def mixed_step() -> tuple[StepBatch, RequestRows]:
    """Side by side: a decode row, a middle chunk, a scored prompt's last chunk, and a decode row with two drafts."""
    state = RequestRows(8, 64, 16)

    def board(name: str, tokens: range, num_prompt: int, blocks: list[int], **params: object) -> None:
        state.add(NewRequest(name, list(tokens), num_prompt, SamplingParams(**params), 1, 0, blocks, 0, (2,)))

    board("decode", range(100, 117), 3, [4], repetition_penalty=1.5)  # 17 tokens, 16 with KV
    board("chunk", range(200, 240), 40, [5, 6, 1])
    board("scored", range(300, 305), 5, [9], prompt_logprobs=2, min_tokens=1, logit_bias={8: 1.5})
    board("drafts", range(400, 406), 2, [3], presence_penalty=1.0, logprobs=1)
    scheduled = [
        ScheduledRequest("decode", 1, 16, (7,)),
        ScheduledRequest("chunk", 4, 14),
        ScheduledRequest("scored", 3, 2),
        ScheduledRequest("drafts", 3, 5, (), (500, 501)),
    ]
    return build_step(scheduled, state), state


def test_rows_of_a_step() -> None:
    """Ids, positions, tables and slots of every row, and which rows need logits."""
    step, _ = mixed_step()
    ragged = step.ragged
    check_batch(ragged, 64, 64)
    assert ragged.input_ids.tolist() == [116, 214, 215, 216, 217, 302, 303, 304, 405, 500, 501]
    assert ragged.positions.tolist() == [16, 14, 15, 16, 17, 2, 3, 4, 5, 6, 7]
    assert ragged.query_start_loc.tolist() == [0, 1, 5, 8, 11]
    assert ragged.seq_lens.tolist() == [17, 18, 5, 8]
    assert ragged.block_tables.tolist() == [[4, 7], [5, 6], [9, 0], [3, 0]]
    assert ragged.slot_mapping.tolist() == [112, 94, 95, 96, 97, 146, 147, 148, 53, 54, 55]
    assert ragged.logits_indices.tolist() == [0, 5, 6, 7, 8, 9, 10]  # nothing of the middle chunk
    assert step.is_prompt.tolist() == [False, True, True, False, False, False, False]


def test_what_each_row_of_logits_is_for() -> None:
    """Targets, positions, bans and histories per entry."""
    step, state = mixed_step()
    asked = build_sample_batch(step, state)
    assert asked.target.tolist() == [-1, 303, 304, -1, -1, -1, -1]
    assert asked.position.tolist() == [17, 3, 4, 5, 6, 7, 8]
    assert asked.num_logprobs.tolist() == [-1, 2, 2, -1, 1, 1, 1]
    assert asked.bias_start.tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert asked.bias_ids.tolist() == [8, 2]
    assert asked.bias_values.tolist() == [1.5, -np.inf]
    assert np.diff(asked.history_start).tolist() == [17, 0, 0, 0, 6, 7, 8]
    assert asked.history_prompt_len.tolist() == [3, 0, 0, 0, 2, 2, 2]
    assert asked.history_ids[-8:].tolist() == [*range(400, 406), 500, 501]


def test_every_parameter_reaches_its_column() -> None:
    """A row that took over from another holds each parameter in its own column, off values as the ops spell them."""
    state = RequestRows(1, 64, 16)
    given = {"temperature": 0.7, "top_k": 9, "top_p": 0.5, "min_p": 0.25, "repetition_penalty": 1.5}
    given |= {"presence_penalty": 0.75, "frequency_penalty": -0.5}
    off = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    off |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    for params, seed, branch, blocks, expected in (
        (SamplingParams(**given, logprobs=4), 2**64 - 1, 6, [5, 6, 7], {**given, "num_logprobs": 4}),
        (SamplingParams(temperature=0.0, top_k=-1), 5, 0, [4], {**off, "num_logprobs": -1}),
    ):
        state.add(NewRequest("r", [1, 2, 3], 3, params, seed, branch, blocks, 0))
        assert state.block_tables[0, :4].tolist() == blocks + [0] * (4 - len(blocks))
        asked = build_sample_batch(build_step([ScheduledRequest("r", 3, 0)], state), state)
        for name, value in {**expected, "seed": seed, "branch": branch, "position": 3}.items():
            assert getattr(asked, name).tolist() == [
                np.float32(value) if isinstance(value, float) else value
            ], name
        state.free(["r"])


def test_what_is_kept_of_the_draws() -> None:
    """The first draft is accepted and the second is not; rows grow by what was accepted; no number is infinite."""
    step, state = mixed_step()
    result = SampleResult(
        token_ids=np.array([10, 303, 304, 11, 500, 12, 13], np.int32),
        logprobs=np.array([0, -1, -np.inf, 0, -2, np.nan, -3], np.float32),
        ranks=np.arange(7, dtype=np.int32),
        top_ids=np.zeros((7, 2), np.int32),
        top_logprobs=np.full((7, 2), -np.inf, np.float32),
    )
    output = take_result(result, build_sample_batch(step, state), step, state)
    assert output.sampled_token_ids == {"decode": [10], "scored": [11], "drafts": [500, 12]}
    assert [entry.logprob for entry in output.prompt_logprobs["scored"]] == [-1.0, MIN_LOGPROB]
    assert [entry.logprob for entry in output.logprobs["drafts"]] == [-2.0, MIN_LOGPROB]
    assert output.logprobs["drafts"][0].top_logprobs == (MIN_LOGPROB,)
    assert set(output.logprobs) == {"drafts"}
    rows = [state.row_of(name) for name in ("decode", "chunk", "scored", "drafts")]
    assert state.num_tokens[rows].tolist() == [18, 40, 6, 8]
    assert state.token_ids[rows[3], 5:8].tolist() == [405, 500, 12]
