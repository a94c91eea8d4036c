"""Every op on every backend that is there, against the reference and against itself under other traffic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from chairlift.ops.interface import Axis, Ops, TensorType
from chairlift.ops.reference import ReferenceOps
from ops.backends import BACKENDS, FASTER_ISAS, available_isas
from ops.op_table import (
    CASES,
    MAX_LOGITS,
    MAX_TOKENS,
    MIXED_STEPS,
    SAMPLING_KINDS,
    AttentionSetup,
    OpCase,
    PagedAttention,
    Results,
    load_rows,
    random_rows,
    random_tensor,
    sampled,
    token_batch,
)


@cache
def _expected(case: OpCase) -> Results:
    return case.run(ReferenceOps(MAX_TOKENS, MAX_LOGITS))


@pytest.fixture(params=list(BACKENDS), scope="module")
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    backend = BACKENDS[request.param](MAX_TOKENS, MAX_LOGITS)
    yield backend
    backend.close()


# -- against the reference ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_reference(ops: Ops, case: OpCase) -> None:
    """The op gives what the reference gives, and finite numbers only."""
    got, expected = case.run(ops), _expected(case)
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert got[name].shape == values.shape, name
        if np.issubdtype(values.dtype, np.integer):
            np.testing.assert_array_equal(got[name], values, err_msg=name)
        else:
            assert np.isfinite(got[name]).all(), name
            np.testing.assert_allclose(got[name], values, rtol=case.rtol, atol=case.atol, err_msg=name)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_instruction_set_gives_the_bits_of_the_generic_kernels(case: OpCase, isa: str) -> None:
    """Every number of every case is equal on both instruction sets, with one thread and with two."""
    generic, faster = (BACKENDS[name](MAX_TOKENS, MAX_LOGITS) for name in ("cpu generic", f"cpu {isa}"))
    got, expected = case.run(faster), case.run(generic)
    generic.close()
    faster.close()
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def test_which_instruction_sets_were_compared() -> None:
    """Skipped, with their names, where some have not been: this machine lacks them."""
    missing = [isa for isa in FASTER_ISAS if isa not in available_isas()]
    if missing:
        pytest.skip(f"not on this machine, or not in this build: {', '.join(missing)}")


# -- same bits whatever the neighbours -----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", list(TensorType), ids=lambda kind: kind.value)
def test_a_row_of_a_product_does_not_depend_on_the_others(ops: Ops, kind: TensorType) -> None:
    """Each row of a product of 70 has the bits that it has alone, in pairs, in fives and in seventeens."""
    rows, weights = random_rows(20, 70, 160), ops.load_linear([random_tensor(kind, 21, 130, 160)])
    gated = ops.load_gated_linear(*(random_tensor(kind, seed, 130, 160) for seed in (22, 23)), "silu")

    def products(values: np.ndarray) -> np.ndarray:
        batch = ops.upload_batch(token_batch(len(values)))
        x, out, out_gated = load_rows(ops, batch, values), *_two_outputs(ops, 130)
        ops.linear(batch, x, weights, out)
        ops.linear(batch, x, weights, out, accumulate=True)
        ops.gated_linear(batch, x, gated, out_gated)
        return np.concatenate([ops.to_numpy(batch, out), ops.to_numpy(batch, out_gated)], axis=1)

    whole = products(rows)
    for size in (1, 2, 5, 17):
        pieces = [products(rows[start : start + size]) for start in range(0, len(rows), size)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole, err_msg=f"{size} rows at a time")


def _two_outputs(ops: Ops, width: int) -> tuple:
    return ops.allocate_activation(Axis.TOKENS, width), ops.allocate_activation(Axis.TOKENS, width)


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
@pytest.mark.parametrize("block_size", [16, 32])
def test_attention_does_not_depend_on_chunks_neighbours_or_blocks(
    ops: Ops, dtype: str, block_size: int
) -> None:
    """Alone and whole, alone row by row at the end, and mixed in six steps: the same bits, at two block sizes."""
    totals = [sum(count for step in MIXED_STEPS for r, count in step if r == request) for request in range(4)]
    mixed = PagedAttention(ops, AttentionSetup(dtype=dtype, num_blocks=80), totals, poison=True)
    setup = AttentionSetup(dtype=dtype, block_size=block_size, num_blocks=80)
    by_mixed: dict[int, list[np.ndarray]] = {request: [] for request in range(4)}
    for step in MIXED_STEPS:
        results = mixed.step(step)
        for request, _ in step:
            by_mixed[request] += [v for key, v in results.items() if key.startswith(f"out {request} ")]
    for request, total in enumerate(totals):
        alone = PagedAttention(ops, setup, totals)
        head = max(1, total - 3)
        whole = [alone.step([(request, count)]) for count in [head] + [1] * (total - head)]
        outputs = [v for results in whole for key, v in results.items() if key.startswith("out ")]
        np.testing.assert_array_equal(np.concatenate(outputs), np.concatenate(by_mixed[request]))


def test_sampling_does_not_depend_on_neighbours(ops: Ops) -> None:
    """Each kind of parameters gives the same token and logprobs alone and beside all others."""
    logits = random_rows(30, len(SAMPLING_KINDS), 777, 3.0)
    entries = [
        {"row": i, "seed": 5 + i, **kind, "num_logprobs": 3} for i, kind in enumerate(SAMPLING_KINDS.values())
    ]
    together = sampled(ops, logits, entries)
    for i, entry in enumerate(entries):
        alone = sampled(ops, logits[i : i + 1], [{**entry, "row": 0}])
        for name in ("token_ids", "logprobs", "ranks"):
            assert alone[name][0] == together[name][i]
        np.testing.assert_array_equal(alone["top_logprobs"], together["top_logprobs"][3 * i : 3 * i + 3])


# -- what sampling promises ----------------------------------------------------------------------------------------
def test_draws_follow_the_distribution(ops: Ops) -> None:
    """4000 draws over positions hit each of five tokens as often as its probability says, within four sigma."""
    probabilities = np.array([0.5, 0.25, 0.15, 0.08, 0.02])
    logits = np.log(probabilities).astype(np.float32)[None]
    entries = [{"seed": 9, "position": position} for position in range(4000)]
    counts = np.bincount(sampled(ops, logits, entries)["token_ids"], minlength=5)
    sigma = np.sqrt(4000 * probabilities * (1 - probabilities))
    assert (np.abs(counts - 4000 * probabilities) < 4 * sigma).all()


def test_truncations_keep_what_they_say(ops: Ops) -> None:
    """top-k keeps k, top-p the smallest prefix that reaches p, min-p what is likely enough, ties by lowest id."""
    logits = np.log(np.array([[0.1, 0.4, 0.1, 0.3, 0.1]])).astype(np.float32)

    def seen(**params: float) -> set[int]:
        entries = [{"position": position, **params} for position in range(400)]
        return set(sampled(ops, logits, entries)["token_ids"].tolist())

    assert seen() == {0, 1, 2, 3, 4}
    assert seen(top_k=3) == {0, 1, 3}
    assert seen(top_p=0.69) == {1, 3}
    assert seen(top_p=0.75) == {0, 1, 3}
    assert seen(top_p=0.0) == {1}
    assert seen(min_p=0.5) == {1, 3}
    assert seen(top_k=4, top_p=0.85) == {0, 1, 3}


def test_greedy_ties_go_to_the_lowest_id(ops: Ops) -> None:
    """With equal logits the lowest id wins, and a ban moves on to the next."""
    logits = np.zeros((1, 300), np.float32)
    logits[0, [40, 41, 250]] = 2.0
    entries = [{"temperature": 0.0}, {"temperature": 0.0, "bias": {40: -np.inf}}]
    assert sampled(ops, logits, entries)["token_ids"].tolist() == [40, 41]


def test_a_logit_that_is_not_a_number_is_never_taken(ops: Ops) -> None:
    """NaN counts as minus infinity, greedy or not, and does not spoil the others' logprobs."""
    logits = np.array([[np.nan, 1.0, np.nan, 1.0, -np.inf]], np.float32)
    entries = [{"temperature": 0.0, "num_logprobs": 0}]
    entries += [{"position": position} for position in range(50)]
    result = sampled(ops, logits, entries)
    assert result["token_ids"][0] == 1
    assert set(result["token_ids"].tolist()) == {1, 3}
    np.testing.assert_allclose(result["logprobs"], np.log(0.5), rtol=1e-6)
    assert result["ranks"].tolist() == [1]


def test_presence_and_frequency_count_output_only(ops: Ops) -> None:
    """Prompt tokens feel the repetition penalty alone; frequency grows with the count and presence does not."""
    logits = np.array([[2.0, 1.5, 1.0, -1.0]], np.float32)
    greedy = {"temperature": 0.0}
    entries = [
        {**greedy, "presence_penalty": 2.0, "frequency_penalty": 2.0, "prompt": [0, 0, 0]},
        {**greedy, "presence_penalty": 2.0, "prompt": [0], "output": [0]},
        {**greedy, "presence_penalty": 0.4, "output": [0, 0, 0]},
        {**greedy, "frequency_penalty": 0.4, "output": [0]},
        {**greedy, "frequency_penalty": 0.4, "output": [0, 0]},
        {**greedy, "repetition_penalty": 1.9, "prompt": [0], "output": [1]},
    ]
    assert sampled(ops, logits, entries)["token_ids"].tolist() == [0, 1, 0, 0, 1, 0]
    assert sampled(ops, logits, [{**greedy, "repetition_penalty": 2.1, "prompt": [0]}])[
        "token_ids"
    ].tolist() == [1]


# -- what is refused -----------------------------------------------------------------------------------------------
BAD_BATCHES: dict[str, dict[str, object]] = {
    "too many tokens": {},
    "a gap in positions": {"positions": np.array([0, 1, 3], np.int32)},
    "a wrong dtype": {"positions": np.arange(3, dtype=np.int64)},
    "slots of another length": {"slot_mapping": np.arange(2, dtype=np.int64)},
    "a request with no row": {
        "query_start_loc": np.array([0, 0, 3], np.int32),
        "seq_lens": np.array([0, 3], np.int32),
        "block_tables": np.zeros((2, 1), np.int32),
    },
    "rows left over": {"query_start_loc": np.array([0, 2], np.int32)},
    "logits rows outside": {"logits_indices": np.array([3], np.int32)},
    "logits rows that do not ascend": {"logits_indices": np.array([1, 1], np.int32)},
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_malformed_batch_is_refused(ops: Ops, name: str) -> None:
    """A batch that breaks the contract raises ValueError before any kernel reads it."""
    batch = token_batch(MAX_TOKENS + 1 if name == "too many tokens" else 3)
    for key, value in BAD_BATCHES[name].items():
        setattr(batch, key, value)
    with pytest.raises(ValueError, match=r"\w"):
        ops.upload_batch(batch)


def test_ids_and_slots_outside_are_refused(ops: Ops) -> None:
    """Token ids, slots, blocks and sampling ids out of range raise ValueError instead of reading elsewhere."""
    batch = token_batch(3)
    batch.input_ids = np.array([0, 3, 1], np.int32)
    out = ops.allocate_activation(Axis.TOKENS, 32)
    with pytest.raises(ValueError, match="3"):
        ops.embed(ops.upload_batch(batch), ops.load_linear([random_tensor(TensorType.Q4_1, 1, 3, 32)]), out)
    logits = np.zeros((1, 10), np.float32)
    for entry in ({"row": 1}, {"target": 10}, {"bias": {10: 1.0}}, {"bias": {-1: 1.0}}, {"prompt": [10]}):
        with pytest.raises(ValueError, match=r"\w"):
            sampled(ops, logits, [entry])
    paged = PagedAttention(ops, AttentionSetup(num_blocks=4), [40])
    paged.tables[:] = 4
    with pytest.raises(ValueError, match=r"\w"):
        paged.step([(0, 1)])
