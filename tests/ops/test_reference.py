"""The oracle itself, against plain loops, published test vectors and other people's code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chairlift.ops.dequantize import dequantize, dequantize_rows
from chairlift.ops.interface import RopeSpec, TensorType
from chairlift.ops.reference import ReferenceOps
from chairlift.ops.reference_sampling import adjusted_logits, kept_tokens, philox_uniform
from chairlift.ops.rope_tables import cos_sin_tables, inverse_frequencies
from ops.op_table import AttentionSetup, PagedAttention, random_tensor, sample_batch


def test_philox_gives_the_published_numbers() -> None:
    """The known answers of Random123 for Philox4x32-10: zero key and counter, and all words set but our zeros."""
    assert philox_uniform(0, 0, 0) == 0x6627E8D5 | 0xE169C58D << 32
    assert philox_uniform(1, 0, 0) != philox_uniform(0, 1, 0) != philox_uniform(0, 0, 1)


@pytest.mark.parametrize("kind", list(TensorType), ids=lambda kind: kind.value)
def test_dequantisation_equals_the_gguf_package(kind: TensorType) -> None:
    """Every format gives the very floats of the gguf package."""
    quants = pytest.importorskip("gguf.quants", reason="the gguf package is an extra")
    from gguf.constants import GGMLQuantizationType

    tensor = random_tensor(kind, 3, 5, 96)
    expected = quants.dequantize(tensor.data, GGMLQuantizationType[kind.value])
    np.testing.assert_array_equal(dequantize(tensor), expected.reshape(5, 96))


def test_q4_1_by_hand() -> None:
    """One block, value by value: the low nibbles are the first 16 values."""
    data = np.zeros((1, 20), np.uint8)
    data[0, :4] = np.array([0.5, -1.0], np.float16).view(np.uint8)
    data[0, 4] = 0xF3
    values = dequantize_rows(data, TensorType.Q4_1, 32)[0]
    assert values[0] == 0.5 * 3 - 1
    assert values[16] == 0.5 * 15 - 1
    assert (values[1:16] == -1).all()


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    """A row of too few bytes raises ValueError with both sizes."""
    with pytest.raises(ValueError, match="32 values of Q8_0"):
        dequantize_rows(np.zeros((1, 33), np.uint8), TensorType.Q8_0, 32)


def test_rope_tables_rotate_by_position_times_frequency() -> None:
    """Plain: base^(-2i/d). Linear divides by the factor; llama3 keeps fast pairs and divides slow ones."""
    spec = RopeSpec(8, base=100.0, max_positions=5)
    frequencies = inverse_frequencies(spec)
    np.testing.assert_allclose(frequencies, [100 ** (-i / 4) for i in range(4)])
    cos, sin = cos_sin_tables(spec)
    assert cos.shape == sin.shape == (5, 4)
    assert cos[3, 1] == np.float32(math.cos(3 * frequencies[1]))
    linear = RopeSpec(8, 100.0, 5, "linear", factor=4.0)
    np.testing.assert_allclose(inverse_frequencies(linear), frequencies / 4)
    llama3 = inverse_frequencies(RopeSpec(64, 500000.0, 5, "llama3", 8.0, 1.0, 4.0, 8192))
    plain = inverse_frequencies(RopeSpec(64, 500000.0, 5))
    assert llama3[0] == plain[0]
    np.testing.assert_allclose(llama3[-1], plain[-1] / 8)
    assert ((plain / 8 <= llama3 + 1e-18) & (llama3 <= plain)).all()
    with pytest.raises(ValueError, match="yarn"):
        inverse_frequencies(RopeSpec(8, 100.0, 5, "yarn"))
    with pytest.raises(ValueError, match="divisors"):
        inverse_frequencies(RopeSpec(8, 100.0, 5, freq_divisors=(1.0,)))


def test_attention_equals_a_plain_loop() -> None:
    """Scores, softmax and mix written out for every row, head and key."""
    setup = AttentionSetup(num_q_heads=4, num_kv_heads=2, head_dim=32, dtype="f32")
    paged = PagedAttention(ReferenceOps(64, 4), setup, [20])
    got = np.concatenate(
        [paged.step([(0, count)])["out 0 from " + str(start)] for start, count in ((0, 17), (17, 3))]
    )
    cos, sin = cos_sin_tables(setup.rope_spec())
    heads = paged.data[0].reshape(20, 8, 32).astype(np.float64)
    for row in range(20):
        for head in range(6):
            low, high = heads[row, head, :16].copy(), heads[row, head, 16:].copy()
            heads[row, head, :16] = low * cos[row] - high * sin[row]
            heads[row, head, 16:] = high * cos[row] + low * sin[row]
    for row in range(20):
        for head in range(4):
            key, value = 4 + head // 2, 6 + head // 2
            scores = [math.exp(heads[row, head] @ heads[p, key] / math.sqrt(32)) for p in range(row + 1)]
            expected = sum(score * heads[p, value] for p, score in enumerate(scores)) / sum(scores)
            np.testing.assert_allclose(got[row, head * 32 : head * 32 + 32], expected, rtol=1e-5, atol=1e-6)


def test_bias_then_penalties_in_the_order_of_the_users() -> None:
    """Bias first, then repetition (divide above zero, multiply below), then frequency and presence."""
    row = np.array([1.0, -1.0, 4.0, 0.0], np.float32)
    request = sample_batch(
        [
            {
                "bias": {0: 3.0},
                "repetition_penalty": 2.0,
                "frequency_penalty": 0.5,
                "presence_penalty": 0.25,
                "prompt": [0, 1],
                "output": [2, 2],
            }
        ]
    )
    assert adjusted_logits(row, request, 0).tolist() == [2.0, -2.0, 0.75, 0.0]
    assert row.tolist() == [1.0, -1.0, 4.0, 0.0]


def test_kept_tokens_are_sorted_and_ties_ordered_by_id() -> None:
    """The order is logit descending, id ascending; the weight of the first is exactly 2^40."""
    order, weights = kept_tokens(np.array([0.0, 2.0, 2.0, -np.inf], np.float32), 0, 1.0, 0.0)
    assert order.tolist() == [1, 2, 0, 3]
    assert weights[0] == weights[1] == 2**40
    assert weights[3] == 0


def test_a_row_with_everything_banned_still_gives_a_token() -> None:
    """All logits at minus infinity give id 0 and no NaN, greedy or not."""
    ops = ReferenceOps(8, 8)
    from ops.op_table import load_logits

    batch, logits = load_logits(ops, np.zeros((1, 5), np.float32))
    bans = dict.fromkeys(range(5), -np.inf)
    result = ops.sample(batch, logits, sample_batch([{"bias": bans}, {"bias": bans, "temperature": 0.0}]))
    assert result.token_ids.tolist() == [0, 0]
