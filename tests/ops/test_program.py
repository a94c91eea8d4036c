"""A forward pass recorded once and replayed: the bits of direct calls, for steps of any shape."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from chairlift.model.llama import Llama
from chairlift.ops.interface import (
    Activation,
    Axis,
    Batch,
    KVCache,
    Ops,
    OpSeconds,
    Program,
    RaggedBatch,
    TensorType,
)
from model.harness import Harness
from ops.backends import BACKENDS
from ops.op_table import AttentionSetup, f32_tensor, norm_tensor, random_rows, random_tensor, token_batch
from runner.lift import tiny_llama

MAX_TOKENS, MAX_LOGITS = 64, 8
# (tokens of each sequence, whether logits are wanted): prompts, a chunk without logits, decode steps of 1 to 3 rows
STEPS = (
    ({0: [5, 6, 7]}, True),
    ({0: [8], 1: list(range(20, 60))}, False),
    ({1: [60], 0: [9], 2: [1, 2]}, True),
    ({2: [3]}, True),
    ({0: [10], 1: [61], 2: [4]}, True),
)


class Replayed:
    """A model whose forward pass is recorded at its first step."""

    def __init__(self, model: Llama, ops: Ops) -> None:
        self.spec = model.spec
        self.kv_cache_spec = model.kv_cache_spec
        self._model, self._ops = model, ops
        self._program: Program | None = None

    def forward(self, batch: Batch, kv: KVCache) -> Activation:
        if self._program is None:
            self._program = self._ops.capture(lambda batch: self._model.forward(batch, kv))
        return self._program.run(batch)


@pytest.fixture(params=list(BACKENDS))
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    backend = BACKENDS[request.param](MAX_TOKENS, MAX_LOGITS)
    yield backend
    backend.close()


def native(ops: Ops) -> Ops:
    if ops.name == "reference":
        pytest.skip("the reference does not record")
    return ops


def test_replay_gives_the_bits_of_direct_calls(ops: Ops) -> None:
    """One recording serves prompts, chunks without logits and decode steps, each with the bits of direct calls."""
    model = tiny_llama(ops, type_name="Q4_1")
    direct = Harness(model, ops, [48, 64, 16])
    replayed = Harness(Replayed(model, ops), ops, [48, 64, 16])
    for tokens, logits in STEPS:
        expected = direct.step(tokens, logits=logits)
        assert len(expected) == (len(tokens) if logits else 0)
        np.testing.assert_array_equal(replayed.step(tokens, logits=logits), expected)


def chain(ops: Ops) -> Program:
    """embed, norm, linear, gather: the weights are named by the program alone."""
    table = ops.load_linear([f32_tensor(random_rows(1, 40, 32))])
    norm = ops.load_norm(norm_tensor(random_rows(2, 1, 32)[0]))
    weight = ops.load_linear([random_tensor(TensorType.Q4_0, 3, 48, 32)])
    x, y = ops.allocate_activation(Axis.TOKENS, 32), ops.allocate_activation(Axis.TOKENS, 48)
    out = ops.allocate_activation(Axis.LOGITS, 48)

    def forward(batch: Batch) -> Activation:
        ops.embed(batch, table, x)
        ops.rms_norm(batch, x, norm, 1e-5, x)
        ops.linear(batch, x, weight, y)
        ops.gather_logits_rows(batch, y, out)
        return out

    return ops.capture(forward)


def test_a_program_keeps_what_it_points_into(ops: Ops) -> None:
    """Weights and activations that nobody else holds outlive a collection, and are still read."""
    program, again = chain(ops), chain(ops)
    batch = ops.upload_batch(token_batch(30, [0, 29]))
    first = ops.to_numpy(batch, program.run(batch))
    gc.collect()
    rubbish = [np.full((30, 48), np.nan, np.float32) for _ in range(200)]
    np.testing.assert_array_equal(ops.to_numpy(batch, again.run(batch)), first)
    assert len(rubbish) == 200


def test_every_op_is_timed_on_request(ops: Ops) -> None:
    """One entry an op, in order, and the bits of a run that nobody times."""
    program, batch = chain(native(ops)), ops.upload_batch(token_batch(30, [0, 29]))
    times: list[OpSeconds] = []
    untimed = ops.to_numpy(batch, program.run(batch))
    timed = program.run(batch, times)
    np.testing.assert_array_equal(ops.to_numpy(batch, timed), untimed)
    assert len(times) == 4
    assert all(seconds > 0 and busy > 0 for seconds, busy in times)
    assert [work.name for work in program.work(batch)] == [
        "embed 32",
        "rms_norm 32",
        "linear 32 to 48",
        "gather_logits_rows 48",
    ]


def test_products_count_every_row(ops: Ops) -> None:
    """A product needs two FLOPs for each weight and row, and the bytes of each weight once."""
    work = chain(native(ops)).work(ops.upload_batch(token_batch(30, [0, 29])))
    assert (work[2].flops, work[2].int8_ops, work[2].num_bytes) == (2 * 30 * 32 * 48, 0, 48 * (16 + 4))
    assert work[0].flops == work[0].num_bytes == work[1].flops == 0


@pytest.mark.parametrize("up", [TensorType.Q4_1, TensorType.F32], ids=["together", "apart"])
def test_gated_products_count_both_matrices(ops: Ops, up: TensorType) -> None:
    """Gate and up count, whether they are packed together or apart."""
    gate, other = (random_tensor(kind, 1, 48, 32) for kind in (TensorType.Q4_1, up))
    weight = native(ops).load_gated_linear(gate, other, "silu")
    x, out = ops.allocate_activation(Axis.TOKENS, 32), ops.allocate_activation(Axis.TOKENS, 48)

    def forward(batch: Batch) -> Activation:
        ops.gated_linear(batch, x, weight, out)
        return out

    (work,) = ops.capture(forward).work(ops.upload_batch(token_batch(5)))
    assert work.flops == 2 * 5 * 2 * 32 * 48


def test_attention_counts_visible_keys(ops: Ops) -> None:
    """A row at position p works with p + 1 keys; K and V are read once a request, in the cache's dtype."""
    setup = AttentionSetup(dtype="f16")
    kv = native(ops).allocate_kv_cache(setup.kv_spec())
    qkv = ops.allocate_activation(Axis.TOKENS, setup.width)
    out = ops.allocate_activation(Axis.TOKENS, setup.num_q_heads * setup.head_dim)

    def forward(batch: Batch) -> Activation:
        ops.attention(batch, qkv, kv, 0, 1.0, out)
        return out

    (work,) = ops.capture(forward).work(ops.upload_batch(token_batch(5)))
    assert work.flops == (1 + 2 + 3 + 4 + 5) * 4 * setup.num_q_heads * setup.head_dim
    assert work.num_bytes == 5 * 2 * 2 * setup.num_kv_heads * setup.head_dim


def test_the_reference_times_its_forward_pass_as_one_op() -> None:
    """A backend that records nothing has one entry, so that sums over ops still hold."""
    ops = BACKENDS["reference"](MAX_TOKENS, MAX_LOGITS)
    program, batch = chain(ops), ops.upload_batch(token_batch(3))
    times: list[OpSeconds] = []
    program.run(batch, times)
    assert [work.name for work in program.work(batch)] == ["forward"]
    assert len(times) == 1


def test_a_step_that_an_op_cannot_take_changes_nothing(ops: Ops) -> None:
    """The id outside the second table is refused before the first table's rows are written."""
    big, small = (native(ops).load_linear([f32_tensor(random_rows(i, n, 32))]) for i, n in ((1, 40), (2, 3)))
    x = ops.allocate_activation(Axis.TOKENS, 32)

    def forward(batch: Batch) -> Activation:
        ops.embed(batch, big, x)
        ops.embed(batch, small, x)
        return x

    batch = ops.upload_batch(token_batch(5))
    with pytest.raises(ValueError, match="4"):
        ops.capture(forward).run(batch)
    assert not ops.to_numpy(batch, x).any()


def test_shapes_are_compared_when_an_op_is_recorded(ops: Ops) -> None:
    """Widths and axes that don't fit are refused at `capture`, with the numbers."""
    native(ops)
    weight = ops.load_linear([random_tensor(TensorType.F32, 1, 48, 32)])
    tokens = ops.allocate_activation(Axis.TOKENS, 32)
    logits = ops.allocate_activation(Axis.LOGITS, 48)
    for out, problem in ((tokens, "32"), (logits, "axis")):

        def forward(batch: Batch, out: Activation = out) -> Activation:
            ops.linear(batch, tokens, weight, out)
            return out

        with pytest.raises(ValueError, match=problem):
            ops.capture(forward)


def test_no_rows_of_logits_is_a_step_too(ops: Ops) -> None:
    """A program runs on a batch whose logits nobody wants; its result has no rows."""
    program = chain(ops)
    ragged: RaggedBatch = token_batch(7, [])
    batch = ops.upload_batch(ragged)
    assert ops.to_numpy(batch, program.run(batch)).shape == (0, 48)
