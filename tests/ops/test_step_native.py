"""The native ops of a step beside the products: attention, rope, norms, sampling; right, and one set of bits."""

from __future__ import annotations

import ast
import math
import resource
import threading
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.ops.interface import Axis, KVCacheSpec, Ops, RopeSpec
from chairlift.ops.reference_sampling import philox_uniform
from chairlift.ops.rope_tables import cos_sin_tables
from ops.backends import available_isas
from ops.op_table import (
    AttentionSetup,
    PagedAttention,
    load_logits,
    load_rows,
    norm_tensor,
    random_rows,
    sample_batch,
    sampled,
    token_batch,
)

_native: Any = pytest.importorskip(
    "chairlift.ops._native", reason="the native module is not built (make native)"
)

CpuOps: Any = pytest.importorskip("chairlift.ops.cpu").CpuOps

MAX_TOKENS = 1200
MAX_LOGITS = 64


VARIANTS = [
    (1, "generic"),
    (3, "generic"),
    *((threads, isa) for isa in available_isas() for threads in (1, 2)),
]


@pytest.fixture(scope="module")
def variants() -> Any:
    """Every instruction set with one to three threads; the first is what the others are compared with."""
    made = [CpuOps(threads, MAX_TOKENS, MAX_LOGITS, isa) for threads, isa in VARIANTS]
    yield made
    for ops in made:
        ops.close()


@pytest.fixture(scope="module")
def ops() -> Any:
    made = CpuOps(2, MAX_TOKENS, MAX_LOGITS)
    yield made
    made.close()


def assert_same_bits(results: list[np.ndarray]) -> None:
    """Equal bit for bit, the sign of zero and NaN included."""
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))


# -- norms and rope ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 17, 100, 576, 4096])
def test_rms_norm_matches_f64_and_has_one_set_of_bits(variants: list[Ops], width: int) -> None:
    """RMSNorm is right to f32 precision, and bit-equal over instruction sets, threads and in place."""
    rows, weight = random_rows(1, 70, width) * 3, random_rows(2, 1, width)[0]
    results = []
    for ops in variants:
        batch = ops.upload_batch(token_batch(70))
        x, norm = load_rows(ops, batch, rows), ops.load_norm(norm_tensor(weight))
        out = ops.allocate_activation(Axis.TOKENS, width)
        ops.rms_norm(batch, x, norm, 1e-5, out)
        ops.rms_norm(batch, x, norm, 1e-5, x)
        results += [ops.to_numpy(batch, out), ops.to_numpy(batch, x)]
    wide = rows.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(results[0], expected, rtol=1e-6, atol=1e-7)
    assert_same_bits(results)


ROPES = {
    "plain": RopeSpec(64, 10000.0, 8192),
    "wide": RopeSpec(128, 5e5, 131072),
    "odd": RopeSpec(72, 100000.0, 300),
    "linear": RopeSpec(64, 10000.0, 4096, scaling="linear", factor=4.0),
    "llama3": RopeSpec(64, 5e5, 4096, scaling="llama3", factor=32.0, original_max_positions=8192),
    "divisors": RopeSpec(8, 10000.0, 100, freq_divisors=(1.0, 2.5, 8.0, 32.0)),
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_tables_match_f64(ops: Ops, name: str) -> None:
    """cos and sin are what f64 numpy gives, rounded to f32: at most one rounding apart."""
    tables: Any = ops.make_rope(ROPES[name])
    cos, sin = cos_sin_tables(ROPES[name])
    np.testing.assert_allclose(tables.cos, cos, rtol=0, atol=6e-8)
    np.testing.assert_allclose(tables.sin, sin, rtol=0, atol=6e-8)


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 12},
        {"max_positions": 0},
        {"max_positions": 2**21},
        {"base": 0.5},
        {"base": math.inf},
        {"factor": 0.0},
        {"scaling": "yarn"},
        {"scaling": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        {"freq_divisors": (1.0,)},
        {"freq_divisors": (0.0,) * 32},
    ],
    ids=str,
)
def test_rope_specs_out_of_range_are_refused(ops: Ops, changes: dict[str, Any]) -> None:
    """A spec that can't be computed exactly raises ValueError."""
    with pytest.raises(ValueError, match=r"\w"):
        ops.make_rope(RopeSpec(**{"head_dim": 64, "base": 1e4, "max_positions": 64, **changes}))


# -- attention ---------------------------------------------------------------------------------------------------
SHAPES = [
    AttentionSetup(num_q_heads=9, num_kv_heads=3, head_dim=64),  # the default model
    AttentionSetup(num_q_heads=2, num_kv_heads=2, head_dim=8),
    AttentionSetup(num_q_heads=7, num_kv_heads=1, head_dim=72),
    AttentionSetup(num_q_heads=10, num_kv_heads=2, head_dim=24),
    AttentionSetup(num_q_heads=8, num_kv_heads=2, head_dim=128),
    AttentionSetup(num_q_heads=13, num_kv_heads=1, head_dim=256),
    AttentionSetup(num_q_heads=200, num_kv_heads=1, head_dim=8),  # more heads than a tile has pairs
]
LENGTHS = [1, 15, 16, 17, 255, 256, 257, 310]


def _with(setup: AttentionSetup, **changes: Any) -> AttentionSetup:
    return AttentionSetup(**{**vars(setup), **changes})


def _kept(dtype: str, x: np.ndarray) -> np.ndarray:
    """f32 `[..., head_dim]` as a cache of the dtype keeps it, in f64."""
    if dtype == "int8":
        largest = np.abs(x).max(axis=-1, keepdims=True)
        return np.rint(x * (np.float32(127) / largest)) * (largest / np.float32(127)).astype(np.float64)
    return x.astype(np.float16 if dtype == "f16" else np.float32).astype(np.float64)


def _oracle(paged: PagedAttention, request: int, queries: np.ndarray) -> np.ndarray:
    """softmax(q k / sqrt(dim)) v of every row in f64, on the K and V that the cache holds."""
    setup, rows = paged.setup, paged.data[request]
    dim, q_heads, kv_heads = setup.head_dim, setup.num_q_heads, setup.num_kv_heads
    heads = rows.reshape(len(rows), -1, dim)
    tables: Any = paged.rope
    cos, sin = tables.cos[: len(rows), None], tables.sin[: len(rows), None]
    low, high = np.split(heads[:, q_heads : q_heads + kv_heads], 2, axis=2)  # rotated in f32, as the op does
    keys = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)
    keys, values = (_kept(setup.dtype, x) for x in (keys, heads[:, q_heads + kv_heads :]))
    group = q_heads // kv_heads
    q = queries.reshape(len(rows), kv_heads, group, dim).astype(np.float64)
    scores = np.einsum("tkgd,skd->tkgs", q, keys) * dim**-0.5
    scores = np.where(np.tri(len(rows), dtype=bool)[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    weights /= weights.sum(axis=3, keepdims=True)
    return np.einsum("tkgs,skd->tkgd", weights, values).reshape(len(rows), -1)


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.num_q_heads}x{s.num_kv_heads}x{s.head_dim}")
def test_attention_matches_f64_and_has_one_set_of_bits(
    variants: list[Ops], shape: AttentionSetup, dtype: str
) -> None:
    """Whole prompts of many lengths side by side, over poisoned blocks: right, and the same bits everywhere."""
    lengths = [1, 17, 65] if shape.num_q_heads == 200 else LENGTHS if shape.head_dim <= 72 else LENGTHS[:5]
    outputs = []
    for ops in variants:
        paged = PagedAttention(ops, _with(shape, dtype=dtype), lengths, poison=True)
        outputs.append(paged.step(list(enumerate(lengths))))
    for request, length in enumerate(lengths):
        results = [output[f"out {request} from 0"] for output in outputs]
        queries = outputs[0][f"q {request} from 0"]
        np.testing.assert_allclose(results[0], _oracle(paged, request, queries), rtol=1e-4, atol=2e-6)
        assert_same_bits(results)
        assert len(results[0]) == length


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
def test_chunks_threads_and_block_size_do_not_change_bits(variants: list[Ops], dtype: str) -> None:
    """A request of 1000 tokens: whole, in chunks, ending in single rows that several threads share: equal."""
    length = 1000
    plans = [[length], [256] * 3 + [232], [1, 254, 300, 257, 180] + [1] * 8, [992] + [1] * 8]
    results = []
    for i, ops in enumerate(variants):
        for j, plan in enumerate(plans if i in (0, len(variants) - 2) else plans[-1:]):
            block_size = (16, 32, 48)[(i + j) % 3]
            setup = AttentionSetup(dtype=dtype, block_size=block_size, num_blocks=80)
            paged = PagedAttention(ops, setup, [length], poison=True)
            steps = [paged.step([(0, count)]) for count in plan]
            results.append(
                np.concatenate([v for step in steps for k, v in step.items() if k.startswith("out")])
            )
    assert_same_bits(results)


def test_what_comes_later_does_not_reach_back(variants: list[Ops]) -> None:
    """Infinite and NaN values at a later position of the same chunk leave every earlier row as it was."""
    for ops in variants[::2]:
        setup = AttentionSetup()
        clean, spoilt = (PagedAttention(ops, setup, [300]) for _ in range(2))
        spoilt.data[0][260, -1] = np.inf
        spoilt.data[0][261] = np.nan
        before, after = (paged.step([(0, 300)])["out 0 from 0"] for paged in (clean, spoilt))
        assert_same_bits([before[:260], after[:260]])
        assert not np.isfinite(after[261:]).any()


def test_values_are_rounded_as_ieee_halves(variants: list[Ops]) -> None:
    """One visible key returns its value: f32 to f16 and back, ties to even, subnormals and overflow included."""
    bits = np.random.default_rng(5).integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32)
    special = np.array([0.0, -0.0, 65504, 65519.9, 65520, 1e9, -1e9, 2.0**-24, 2.0**-25, 3 * 2.0**-25])
    ties = (np.arange(1, 400) * 2 + 1).astype(np.float32) * np.float32(2.0**-25)
    anything = bits.view(np.float32)
    anything = anything[~np.isnan(anything)]
    numbers = np.concatenate([special.astype(np.float32), ties, 1 + ties, anything])
    rows = len(numbers) // 32
    setup = AttentionSetup(num_q_heads=1, num_kv_heads=1, head_dim=32)
    results = []
    for ops in variants:
        paged = PagedAttention(ops, setup, [1] * 96)
        found = []
        for first in range(0, rows, 90):
            values = numbers[first * 32 : min(first + 90, rows) * 32].reshape(-1, 32)
            for request, value in enumerate(values):
                paged.data[request] = np.concatenate([np.zeros(64, np.float32), value])[None]
            paged.computed = [0] * 96
            found += list(paged.step([(request, 1) for request in range(len(values))]).values())[1::2]
        results.append(np.concatenate(found))
    with np.errstate(over="ignore"):
        expected = numbers[: rows * 32].astype(np.float16).astype(np.float32).reshape(rows, 32)
    np.testing.assert_array_equal(results[0], expected)
    assert_same_bits(results)


def test_int8_values_are_rounded_as_the_contract_says(variants: list[Ops]) -> None:
    """One visible key returns its value: scale = largest / 127, to nearest even; tiny rows are 0, and rows with a
    number that is not finite are NaN throughout, wherever it stands."""
    rng = np.random.default_rng(6)
    rows = rng.normal(0, 1, (90, 40)).astype(np.float32) * np.logspace(-30, 30, 90, dtype=np.float32)[:, None]
    rows[1], rows[2] = 0.0, np.float32(2.0**-101)
    rows[3] = (np.arange(40) + 0.5).astype(np.float32)
    rows[3, 39] = 127.0  # scale 1: halves go to even
    rows[4, 7], rows[5, 39], rows[6, 0] = np.nan, -np.inf, np.inf
    rows[7, 3:5] = np.inf, np.nan
    setup = AttentionSetup(num_q_heads=1, num_kv_heads=1, head_dim=40, dtype="int8")
    results = []
    for ops in variants:
        paged = PagedAttention(ops, setup, [1] * len(rows))
        for request, row in enumerate(rows):
            paged.data[request] = np.concatenate([np.zeros(80, np.float32), row])[None]
        results.append(np.concatenate(list(paged.step([(i, 1) for i in range(len(rows))]).values())[1::2]))
    largest = np.abs(rows).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        expected = np.rint(rows * (np.float32(127) / largest)) * (largest / np.float32(127))
    expected[1:3] = 0.0
    expected[4:8] = np.nan
    np.testing.assert_array_equal(results[0], expected)
    assert_same_bits([np.nan_to_num(result, nan=7.0) for result in results])


@pytest.mark.parametrize("column", [32, 64])
def test_an_int8_cache_hides_nothing(variants: list[Ops], column: int) -> None:
    """A key or value that is not finite spoils every row that sees it and no other."""
    for ops in variants[::2]:
        paged = PagedAttention(ops, AttentionSetup(1, 1, 32, "int8"), [300])
        paged.data[0][260, column] = np.inf
        out = paged.step([(0, 300)])["out 0 from 0"]
        assert np.isfinite(out[:260]).all()
        assert np.isnan(out[260:]).all()


def test_engines_side_by_side_do_not_disturb_each_other() -> None:
    """Two engines driven from two threads of one process compute what one alone does."""
    results: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}

    def drive(key: int) -> None:
        ops = CpuOps(2, 64, 8)
        paged = PagedAttention(ops, AttentionSetup(), [900])
        for _ in range(15):
            results[key].append(paged.step([(0, 60)])[f"out 0 from {len(results[key]) * 60}"])
        ops.close()

    drive(0)
    threads = [threading.Thread(target=drive, args=(key,)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same_bits([np.concatenate(results[key]) for key in (0, 1, 2)])


def test_the_pool_costs_nothing_until_it_is_written(ops: Ops) -> None:
    """A pool of tens of gigabytes is mapped at once and leaves resident memory alone."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pool: Any = ops.allocate_kv_cache(KVCacheSpec(30, 100_000, 16, 3, 64, "f16"))
    assert pool.nbytes == 30 * 100_000 * 16 * 3 * 64 * 2 * 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
def test_a_block_takes_what_the_plan_says(ops: Ops, dtype: str) -> None:
    """The bytes that memory is planned with are those that the pool maps."""
    spec = KVCacheSpec(3, 11, 48, 2, 72, dtype)
    pool: Any = ops.allocate_kv_cache(spec)
    assert pool.nbytes == spec.num_blocks * spec.bytes_per_block


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 24},
        {"head_dim": 12},
        {"head_dim": 264},
        {"num_layers": 0},
        {"num_blocks": -1},
        {"dtype": "int4"},
    ],
    ids=str,
)
def test_pool_shapes_that_kernels_do_not_take_are_refused(ops: Ops, changes: dict[str, Any]) -> None:
    """A pool that no kernel could walk raises ValueError when it is asked for."""
    shape: dict[str, Any] = {
        "num_layers": 1,
        "num_blocks": 4,
        "block_size": 16,
        "num_kv_heads": 1,
        "head_dim": 8,
        "dtype": "f16",
    }
    with pytest.raises(ValueError, match=r"\w"):
        ops.allocate_kv_cache(KVCacheSpec(**{**shape, **changes}))


def test_a_pool_larger_than_the_address_space_is_refused(ops: Ops) -> None:
    """Sizes whose product overflows raise MemoryError, not a small mapping."""
    with pytest.raises(MemoryError):
        ops.allocate_kv_cache(KVCacheSpec(2**31 - 1, 2**31 - 1, 1600, 2**20, 256, "f32"))


def test_ops_compare_the_batch_with_what_they_index(ops: Ops) -> None:
    """Layers, slots, blocks, positions and widths outside raise ValueError before memory is touched."""
    setup = AttentionSetup(num_blocks=2)
    kv, rope = ops.allocate_kv_cache(setup.kv_spec()), ops.make_rope(setup.rope_spec())
    short = ops.make_rope(RopeSpec(setup.head_dim, 1e4, 8))
    qkv = ops.allocate_activation(Axis.TOKENS, setup.width)
    narrow = ops.allocate_activation(Axis.TOKENS, setup.width - setup.head_dim)
    out = ops.allocate_activation(Axis.TOKENS, setup.num_q_heads * setup.head_dim)
    step = ops.upload_batch(token_batch(20))
    far = token_batch(20)
    far.slot_mapping = far.slot_mapping + 13
    long = token_batch(20)
    long.block_tables = np.zeros((1, 1), np.int32)
    bad = [
        lambda: ops.rope_and_store(step, qkv, rope, kv, 2),
        lambda: ops.rope_and_store(step, qkv, rope, kv, -1),
        lambda: ops.rope_and_store(step, qkv, short, kv, 0),
        lambda: ops.rope_and_store(step, narrow, rope, kv, 0),
        lambda: ops.rope_and_store(ops.upload_batch(far), qkv, rope, kv, 0),
        lambda: ops.attention(ops.upload_batch(long), qkv, kv, 0, 1.0, out),
        lambda: ops.attention(step, qkv, kv, 2, 1.0, out),
        lambda: ops.attention(step, qkv, kv, 0, 1.0, qkv),
        lambda: ops.copy_blocks(kv, [(0, 2)]),
        lambda: ops.copy_blocks(kv, [(-1, 0)]),
    ]
    for call in bad:
        with pytest.raises(ValueError, match=r"\d"):
            call()


# -- sampling ----------------------------------------------------------------------------------------------------
def exp_f32(x: np.ndarray) -> np.ndarray:
    """The kernels' exp. An fma by way of f64 has an exact product and is rounded twice: differs once in 2^28."""

    def fma(a: Any, b: Any, c: Any) -> np.ndarray:
        return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)

    f32 = np.float32
    x = np.clip(x, f32(-104), f32(89)).astype(f32)
    round_bits = f32(12582912.0)
    n = fma(x, f32(1.44269504088896341), round_bits) - round_bits
    r = fma(n, f32(2.12194440e-4), fma(n, f32(-0.693359375), x))
    p = np.full_like(x, f32(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, f32(c))
    p = fma(p, r * r, r) + f32(1)
    return np.ldexp(p, n.astype(np.int32)).astype(f32)


def slow_sample(row: np.ndarray, entry: dict[str, Any]) -> int:
    """One draw by a full sort and Python integers."""
    if entry.get("temperature", 1.0) == 0:
        return int(np.argmax(row))
    scaled = (row / np.float32(entry.get("temperature", 1.0))).astype(np.float32)
    weights = exp_f32(scaled - scaled.max())
    fixed = [int(w) for w in np.floor(weights.astype(np.float64) * 2.0**40)]
    order = [int(i) for i in np.argsort(-scaled, kind="stable")]
    top_k = entry.get("top_k", 0)
    order = order[:top_k] if top_k > 0 else order
    if entry.get("top_p", 1.0) < 1:
        sums = list(accumulate(fixed[i] for i in order))
        needed = math.ceil(float(np.float32(entry["top_p"])) * float(sums[-1]))
        order = order[: 1 + next(n for n, reached in enumerate(sums) if reached >= needed)]
    order = [i for i in order if weights[i] >= np.float32(entry.get("min_p", 0.0))]
    sums = list(accumulate(fixed[i] for i in order))
    bits = philox_uniform(entry.get("seed", 0), entry.get("branch", 0), entry.get("position", 0))
    return order[bisect_right(sums, bits * sums[-1] >> 64)]


def _logits(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Rows as models give them, and rows with ties, steps, one peak, and steep or flat tails."""
    rows = rng.normal(0, rng.choice([0.01, 1.0, 4.0, 12.0], (16, 1)), (16, vocab)).astype(np.float32)
    rows[3] = np.round(rows[3])
    rows[4] = np.round(rows[4] * 8) / 8  # on the edges of the ranking's buckets
    rows[5] = 1.5
    rows[6, : vocab // 2] = -np.inf
    rows[7] = -np.arange(vocab, dtype=np.float32) / 16
    rows[8, vocab // 2] += 40
    return rows


@pytest.mark.parametrize("vocab", [1, 2, 17, 1000, 49152])
def test_draws_are_those_of_a_full_sort(variants: list[Ops], vocab: int) -> None:
    """Random parameters on all kinds of rows: exactly the token of the slow algorithm, on every variant."""
    rng = np.random.default_rng(vocab)
    rows = _logits(rng, vocab)
    rows[6, -1] = 0.25
    entries = []
    for i in range(400 if vocab <= 1000 else 100):
        entry: dict[str, Any] = {
            "row": i % 16,
            "seed": int(rng.integers(2**64, dtype=np.uint64)),
            "position": i,
        }
        entry["branch"] = int(rng.integers(4))
        entry["temperature"] = float(rng.choice([0.0, 1.0, 0.3, 0.7, 2.5]))
        entry["top_k"] = int(rng.choice([0, 1, 3, 40, 1000, 10**9]))
        entry["top_p"] = float(rng.choice([1.0, 0.0, 0.1, 0.5, 0.95, 0.999999]))
        entry["min_p"] = float(rng.choice([0.0, 0.0, 1e-7, 0.05, 0.5, 1.0]))
        entries.append(entry)
    for ops in variants:
        drawn = sampled(ops, rows, entries)["token_ids"]
        if ops is variants[0]:
            assert drawn.tolist() == [slow_sample(rows[entry["row"]], entry) for entry in entries]
            first = drawn
        np.testing.assert_array_equal(drawn, first)


def test_philox_is_the_published_one() -> None:
    """The known answers of the authors' library for zero and all-one inputs (their first two words)."""
    assert philox_uniform(0, 0, 0) == 0xE169C58D6627E8D5
    words = 2**32 - 1
    assert philox_uniform(2**64 - 1, words, words) != philox_uniform(0, 0, 0)


@pytest.mark.parametrize(
    "parameters", [{}, {"temperature": 0.6}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1}]
)
def test_frequencies_pass_a_chi_square_test(ops: Ops, parameters: dict[str, Any]) -> None:
    """20000 draws over positions, seeds and branches follow the truncated softmax (chi-square below p = 0.001)."""
    row = np.random.default_rng(3).normal(0, 1.2, 40).astype(np.float32)
    scaled = row.astype(np.float64) / parameters.get("temperature", 1.0)
    p = np.exp(scaled - scaled.max())
    order = np.argsort(-p)
    keep = np.zeros(40, bool)
    keep[order[: parameters.get("top_k", 40)]] = True
    reached = np.cumsum(p[order] / p.sum())
    keep &= np.isin(
        np.arange(40), order[: 1 + np.searchsorted(reached, parameters.get("top_p", 1.0) - 1e-12)]
    )
    keep &= p >= parameters.get("min_p", 0.0)
    p = np.where(keep, p, 0) / p[keep].sum()
    entries = [{"seed": 77 + i % 5, "branch": i % 2, "position": i, **parameters} for i in range(20000)]
    counts = np.bincount(sampled(ops, row[None], entries)["token_ids"], minlength=40)
    assert counts[~keep].sum() == 0
    expected = 20000 * p[keep]
    statistic = ((counts[keep] - expected) ** 2 / expected).sum()
    freedom = keep.sum() - 1  # the 0.999 quantile by Wilson and Hilferty's cube
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def test_penalties_follow_their_definitions(variants: list[Ops]) -> None:
    """Bias, then repetition on distinct prompt and output tokens, then frequency and presence on output tokens."""
    rng = np.random.default_rng(8)
    row = rng.normal(0, 2, 60).astype(np.float32)
    entries, expected = [], []
    for i in range(300):
        prompt, output = (
            rng.integers(0, 60, 30).tolist(),
            rng.integers(0, 60, int(rng.integers(0, 40))).tolist(),
        )
        bias = {int(t): float(rng.normal()) for t in rng.choice(60, 5, replace=False)} if i % 2 else {}
        entry: dict[str, Any] = {"prompt": prompt, "output": output, "bias": bias, "position": i}
        entry["repetition_penalty"] = float(rng.choice([1.0, 1.3, 0.7]))
        entry["frequency_penalty"] = float(rng.choice([0.0, 0.5, -0.5]))
        entry["presence_penalty"] = float(rng.choice([0.0, 1.0, -1.0]))
        entry["temperature"] = float(rng.choice([0.0, 0.8]))
        changed = row.copy()
        for token, value in bias.items():
            changed[token] += np.float32(value)
        factor = np.float32(entry["repetition_penalty"])
        for token in set(prompt + output):
            changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
        for token in set(output):
            changed[token] -= np.float32(entry["frequency_penalty"]) * np.float32(output.count(token))
            changed[token] -= np.float32(entry["presence_penalty"])
        entries.append(entry)
        expected.append(slow_sample(changed, entry))
    for ops in variants:
        result = sampled(ops, row[None], entries)
        assert result["token_ids"].tolist() == expected
        np.testing.assert_array_equal(result["logits"][0], row)


def test_logprobs_match_f64_and_have_one_set_of_bits(variants: list[Ops]) -> None:
    """The log-softmax of raw logits, whatever bias and temperature; ranks and the list in order, ties by id."""
    rng = np.random.default_rng(9)
    rows = _logits(rng, 5003)
    entries = [
        {"row": i, "target": int(t), "num_logprobs": int(k), "temperature": 0.1, "bias": {3: 9.0}}
        for i in range(16)
        for t, k in [(0, 0), (5, 1), (2501, 7), (5002, 20), (17, 300)]
    ]
    results = [sampled(ops, rows, entries) for ops in variants]
    position = 0
    for n, entry in enumerate(entries):
        wide, token = rows[entry["row"]].astype(np.float64), entry["target"]
        logprobs = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        order = np.argsort(-rows[entry["row"]], kind="stable")
        span = slice(position, position := position + entry["num_logprobs"])
        assert results[0]["ranks"][n] == 1 + np.flatnonzero(order == token)[0]
        np.testing.assert_allclose(results[0]["logprobs"][n], logprobs[token], rtol=2e-7, atol=2e-6)
        np.testing.assert_array_equal(results[0]["top_ids"][span], order[: entry["num_logprobs"]])
        np.testing.assert_allclose(
            results[0]["top_logprobs"][span], logprobs[order[: entry["num_logprobs"]]], 2e-7, 2e-6
        )
    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


def test_strange_logits_give_a_valid_token(variants: list[Ops]) -> None:
    """NaN is never drawn while a number is there; nothing crashes; with every token banned the id is 0."""
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    rows = np.zeros((6, 40), np.float32)
    rows[0] = nan
    rows[1, ::2] = nan
    rows[2] = -inf
    rows[3, 7] = inf
    rows[4, [5, 9]] = [inf, nan]
    ban_all = dict.fromkeys(range(40), -np.inf)
    for ops in variants:
        for parameters in ({"temperature": 0.0}, {}, {"top_p": 0.5, "min_p": 0.1, "top_k": 7}):
            entries = [{"row": i, "num_logprobs": 3, **parameters} for i in range(5)]
            drawn = sampled(ops, rows, [*entries, {"row": 5, "bias": ban_all, **parameters}])["token_ids"]
            assert drawn[0] == 0
            assert drawn[1] % 2 == 1
            assert drawn[2:6].tolist() == [0, 7, 5, 0]


def test_tiny_temperatures_come_to_the_greedy_token(variants: list[Ops]) -> None:
    """However small a temperature, down to quotients that overflow, the token is the greedy one."""
    rows = random_rows(14, 16, 500, 20.0)
    temperatures = [10.0**-i for i in range(2, 38)]
    for ops in variants:
        for temperature in temperatures:
            entries = [{"row": i, "temperature": temperature, "seed": 3} for i in range(16)]
            drawn = sampled(ops, rows, entries)["token_ids"]
            np.testing.assert_array_equal(drawn, rows.argmax(axis=1), err_msg=f"{temperature}")


@pytest.mark.parametrize(
    "entry",
    [
        {"temperature": -0.5},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": math.inf},
        {"target": -2},
        {"row": -1},
        {"output": [-1]},
    ],
    ids=str,
)
def test_sampling_parameters_out_of_range_are_refused(ops: Ops, entry: dict[str, Any]) -> None:
    """What would divide by zero, loop or read elsewhere raises ValueError naming the field."""
    with pytest.raises(ValueError, match=r"\w"):
        sampled(ops, np.zeros((1, 10), np.float32), [entry])


def test_malformed_lists_of_a_sample_batch_are_refused(ops: Ops) -> None:
    """Arrays of a wrong dtype or length, and CSR starts that fall, raise ValueError naming the field."""
    batch, logits = load_logits(ops, np.zeros((1, 10), np.float32))
    changes: dict[str, np.ndarray] = {
        "seed": np.zeros(1, np.int64),
        "top_k": np.zeros(2, np.int32),
        "bias_start": np.array([0, 1], np.int32),
        "history_start": np.array([1, 0], np.int32),
        "top_p": np.ones((1, 1), np.float32),
    }
    for name, value in changes.items():
        request = sample_batch([{}])
        setattr(request, name, value)
        with pytest.raises(ValueError, match=name):
            ops.sample(batch, logits, request)


# -- the module --------------------------------------------------------------------------------------------------
def test_the_stub_names_what_the_module_has() -> None:
    """_native.pyi declares every public name of the module and no other, and the same parameters."""
    tree = ast.parse((Path(_native.__file__).parent / "_native.pyi").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert {*functions, *classes} == {name for name in dir(_native) if not name.startswith("_")}
    for name, node in functions.items():
        declared = getattr(_native, name).__nb_signature__[0][0]
        parameters = [argument.split(":")[0] for argument in _split_arguments(declared)]
        assert [argument.arg for argument in node.args.args] == parameters, name


def _split_arguments(signature: str) -> list[str]:
    """Arguments of `def f(a: x[y, z], b: w = \\0) -> v`, cut at commas outside brackets."""
    inside, depth, parts = signature[signature.index("(") + 1 : signature.rindex(") ->")], 0, [""]
    for character in inside:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
