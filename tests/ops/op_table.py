"""One table of op cases, run on every backend: `tests/ops` compares the results, `benchmarks/ops` may time them.

A case builds its inputs from a fixed seed and returns what the op computed as a flat dict of arrays. Values enter
the arena as rows of an F32 embedding table, so that a case needs nothing but `Ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chairlift.ops.interface import (
    Activation,
    Axis,
    Batch,
    HostTensor,
    KVCacheSpec,
    Ops,
    RaggedBatch,
    RopeSpec,
    SampleBatch,
    TensorType,
)

MAX_TOKENS = 640
MAX_LOGITS = 64

Results = dict[str, np.ndarray]


@dataclass(frozen=True)
class OpCase:
    """`run(ops)` computes; results of backends agree within `atol + rtol * |reference|`, integers exactly."""

    name: str
    run: Callable[[Ops], Results]
    rtol: float = 1e-5
    atol: float = 1e-5


# -- inputs ----------------------------------------------------------------------------------------------------
def random_rows(seed: int, rows: int, width: int, scale: float = 1.0) -> np.ndarray:
    """f32 normal values `[rows, width]`."""
    return np.random.default_rng(seed).normal(0, scale, (rows, width)).astype(np.float32)


def f32_tensor(values: np.ndarray) -> HostTensor:
    """Rows of f32 as they lie in a file."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    return HostTensor("values", TensorType.F32, values.shape, values.view(np.uint8))


def norm_tensor(values: np.ndarray) -> HostTensor:
    """A norm's weight `[width]`: one row."""
    row = np.ascontiguousarray(values, dtype=np.float32)[None]
    return HostTensor("norm", TensorType.F32, (row.shape[1],), row.view(np.uint8))


def random_tensor(kind: TensorType, seed: int, rows: int, width: int) -> HostTensor:
    """Weights of about 0.1 in any format, quantised blocks made of random bytes and sane scales."""
    rng = np.random.default_rng(seed)
    if kind.block_values == 1:
        values = rng.normal(0, 0.1, (rows, width)).astype(np.float32)
        if kind is TensorType.BF16:
            data = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            data = values.astype(np.float16 if kind is TensorType.F16 else np.float32)
        return HostTensor(kind.value, kind, (rows, width), data.view(np.uint8))
    blocks = rng.integers(0, 256, (rows, width // 32, kind.block_bytes), dtype=np.uint8)
    scales = {TensorType.Q4_0: (0.02,), TensorType.Q4_1: (0.02, -0.15), TensorType.Q8_0: (0.001,)}[kind]
    for i, scale in enumerate(scales):
        halves = (scale * rng.uniform(0.5, 1.5, (rows, width // 32, 1))).astype(np.float16)
        blocks[:, :, 2 * i : 2 * i + 2] = halves.view(np.uint8)
    return HostTensor(kind.value, kind, (rows, width), blocks.reshape(rows, -1))


def token_batch(num_tokens: int, logits: Sequence[int] | None = None) -> RaggedBatch:
    """One request of `num_tokens` rows from position 0 whose ids count up; for ops that know no requests."""
    counting = np.arange(num_tokens, dtype=np.int32)
    return RaggedBatch(
        input_ids=counting,
        positions=counting,
        query_start_loc=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        block_tables=np.arange((num_tokens + 15) // 16, dtype=np.int32)[None],
        slot_mapping=counting.astype(np.int64),
        logits_indices=np.array([num_tokens - 1] if logits is None else logits, np.int32),
    )


def load_rows(ops: Ops, batch: Batch, values: np.ndarray) -> Activation:
    """Bring f32 `[num_tokens, width]` into the arena; `batch` must have counting ids."""
    x = ops.allocate_activation(Axis.TOKENS, values.shape[1])
    ops.embed(batch, ops.load_linear([f32_tensor(values)]), x)
    return x


def load_logits(ops: Ops, values: np.ndarray) -> tuple[Batch, Activation]:
    """A batch whose logits are the given f32 `[num_logits, vocab]`."""
    batch = ops.upload_batch(token_batch(len(values), range(len(values))))
    logits = ops.allocate_activation(Axis.LOGITS, values.shape[1])
    ops.gather_logits_rows(batch, load_rows(ops, batch, values), logits)
    return batch, logits


# -- token-wise ops --------------------------------------------------------------------------------------------
def run_embed(kind: TensorType, width: int, ops: Ops) -> Results:
    """Rows of a table, some twice."""
    batch = token_batch(9)
    batch.input_ids = np.array([0, 5, 5, 39, 1, 2, 3, 0, 38], np.int32)
    uploaded = ops.upload_batch(batch)
    out = ops.allocate_activation(Axis.TOKENS, width)
    ops.embed(uploaded, ops.load_linear([random_tensor(kind, 1, 40, width)]), out)
    return {"out": ops.to_numpy(uploaded, out)}


def run_norm(rows: int, width: int, in_place: bool, ops: Ops) -> Results:
    """RMSNorm of rows of very different sizes."""
    batch = ops.upload_batch(token_batch(rows))
    sizes = np.logspace(-3, 2, rows, dtype=np.float32)[:, None]
    x = load_rows(ops, batch, random_rows(2, rows, width) * sizes)
    out = x if in_place else ops.allocate_activation(Axis.TOKENS, width)
    ops.rms_norm(batch, x, ops.load_norm(norm_tensor(random_rows(3, 1, width)[0])), 1e-5, out)
    return {"out": ops.to_numpy(batch, out)}


def run_linear(parts: Sequence[tuple[TensorType, int]], rows: int, width: int, ops: Ops) -> Results:
    """A product with stacked parts (type, out), then the same added to itself."""
    batch = ops.upload_batch(token_batch(rows))
    x = load_rows(ops, batch, random_rows(4, rows, width))
    tensors = [random_tensor(kind, 5 + i, out, width) for i, (kind, out) in enumerate(parts)]
    out = ops.allocate_activation(Axis.TOKENS, sum(out for _, out in parts))
    weights = ops.load_linear(tensors)
    ops.linear(batch, x, weights, out)
    product = ops.to_numpy(batch, out)
    ops.linear(batch, x, weights, out, accumulate=True)
    return {"product": product, "accumulated": ops.to_numpy(batch, out)}


def run_head(rows: Sequence[int], ops: Ops) -> Results:
    """Gather some rows, then project them on the logits axis."""
    batch = ops.upload_batch(token_batch(20, rows))
    x = load_rows(ops, batch, random_rows(6, 20, 64))
    gathered = ops.allocate_activation(Axis.LOGITS, 64)
    ops.gather_logits_rows(batch, x, gathered)
    logits = ops.allocate_activation(Axis.LOGITS, 130)
    ops.linear(batch, gathered, ops.load_linear([random_tensor(TensorType.Q8_0, 7, 130, 64)]), logits)
    return {"gathered": ops.to_numpy(batch, gathered), "logits": ops.to_numpy(batch, logits)}


def run_gated(kinds: tuple[TensorType, TensorType], rows: int, activation: str, ops: Ops) -> Results:
    """The gated MLP's first half."""
    batch = ops.upload_batch(token_batch(rows))
    x = load_rows(ops, batch, random_rows(8, rows, 96))
    gate, up = (random_tensor(kind, 9 + i, 72, 96) for i, kind in enumerate(kinds))
    out = ops.allocate_activation(Axis.TOKENS, 72)
    ops.gated_linear(batch, x, ops.load_gated_linear(gate, up, activation), out)
    return {"out": ops.to_numpy(batch, out)}


# -- attention -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AttentionSetup:
    """A model's attention shape, and the paged cache it runs on."""

    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    dtype: str = "f16"
    block_size: int = 16
    num_blocks: int = 96
    rope: str = "none"

    @property
    def width(self) -> int:
        return (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim

    def kv_spec(self) -> KVCacheSpec:
        return KVCacheSpec(2, self.num_blocks, self.block_size, self.num_kv_heads, self.head_dim, self.dtype)

    def rope_spec(self) -> RopeSpec:
        scaling: dict[str, Any] = {
            "none": {},
            "linear": {"scaling": "linear", "factor": 4.0},
            "llama3": {"scaling": "llama3", "factor": 8.0, "original_max_positions": 128},
            "still": {
                "freq_divisors": (1e30,) * (self.head_dim // 2)
            },  # turns nothing: k is stored as it comes
            "divisors": {"freq_divisors": tuple(1.0 + i for i in range(self.head_dim // 2))},
        }[self.rope]
        return RopeSpec(self.head_dim, base=10000.0, max_positions=1024, **scaling)


class PagedAttention:
    """Runs steps of `rope_and_store` and `attention` for requests whose rows depend on (request, position) alone."""

    def __init__(
        self, ops: Ops, setup: AttentionSetup, lengths: Sequence[int], *, poison: bool = False
    ) -> None:
        self.ops, self.setup = ops, setup
        self.kv = ops.allocate_kv_cache(setup.kv_spec())
        self.rope = ops.make_rope(setup.rope_spec())
        self.data = [random_rows(100 + i, length, setup.width) for i, length in enumerate(lengths)]
        self.computed = [0] * len(lengths)
        needs = [-(-length // setup.block_size) for length in lengths]
        shuffled = np.random.default_rng(sum(lengths)).permutation(setup.num_blocks).astype(np.int32)
        self.tables = np.zeros((len(lengths), max(needs)), np.int32)
        for i, (need, end) in enumerate(zip(needs, np.cumsum(needs), strict=True)):
            self.tables[i, :need] = shuffled[end - need : end]
        if poison:
            self._poison()

    def step(self, share: Sequence[tuple[int, int]]) -> Results:
        """Compute the next rows of some requests, `share` = (request, rows): queries and attention of each."""
        batch, rows = self._batch(share)
        uploaded = self.ops.upload_batch(batch)
        qkv, out = self._run(uploaded, rows)
        q_width = out.shape[1]
        results: Results = {}
        for (request, _), start, end in zip(
            share, batch.query_start_loc, batch.query_start_loc[1:], strict=False
        ):
            first = int(batch.positions[start])
            results[f"q {request} from {first}"] = qkv[start:end, :q_width]
            results[f"out {request} from {first}"] = out[start:end]
        return results

    def _run(self, uploaded: Batch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Layer 1 of 2, so that a wrong layer stride shows."""
        setup = self.setup
        qkv = load_rows(self.ops, uploaded, rows)
        out = self.ops.allocate_activation(Axis.TOKENS, setup.num_q_heads * setup.head_dim)
        self.ops.rope_and_store(uploaded, qkv, self.rope, self.kv, 1)
        self.ops.attention(uploaded, qkv, self.kv, 1, setup.head_dim**-0.5, out)
        return self.ops.to_numpy(uploaded, qkv), self.ops.to_numpy(uploaded, out)

    def _batch(self, share: Sequence[tuple[int, int]]) -> tuple[RaggedBatch, np.ndarray]:
        requests = [request for request, _ in share]
        counts = [count for _, count in share]
        starts = [self.computed[request] for request in requests]
        spans = list(zip(requests, starts, counts, strict=True))
        for request, start, count in spans:
            self.computed[request] = start + count
        positions = np.concatenate([np.arange(start, start + count) for _, start, count in spans])
        tables = np.ascontiguousarray(self.tables[requests])
        owner = np.repeat(np.arange(len(share)), counts)
        size = self.setup.block_size
        batch = RaggedBatch(
            input_ids=np.arange(len(positions), dtype=np.int32),
            positions=positions.astype(np.int32),
            query_start_loc=np.cumsum([0, *counts]).astype(np.int32),
            seq_lens=np.array([self.computed[request] for request in requests], np.int32),
            block_tables=tables,
            slot_mapping=tables[owner, positions // size].astype(np.int64) * size + positions % size,
            logits_indices=np.array([len(positions) - 1], np.int32),
        )
        return batch, np.concatenate([self.data[r][start : start + count] for r, start, count in spans])

    def _poison(self) -> None:
        """Fill the pool with NaN, as if other requests had left it there."""
        slots = self.setup.num_blocks * self.setup.block_size
        for first in range(0, slots, MAX_TOKENS):
            count = min(MAX_TOKENS, slots - first)
            batch = token_batch(count)
            batch.slot_mapping += first
            uploaded = self.ops.upload_batch(batch)
            qkv = load_rows(self.ops, uploaded, np.full((count, self.setup.width), np.nan, np.float32))
            self.ops.rope_and_store(uploaded, qkv, self.rope, self.kv, 1)


MIXED_STEPS = (
    [(0, 1), (1, 37), (2, 256)],  # prompts of 1, a chunk of 40, and exactly one split of 256 keys
    [(0, 1), (2, 1), (1, 3)],
    [(3, 300), (0, 1), (2, 45), (1, 1)],  # a long chunk beside single rows
    [(3, 1), (2, 1), (1, 1), (0, 1)],
    [(2, 258), (3, 1)],  # a chunk in the middle of a long request, over a split's edge
    [(2, 1), (3, 9)],
)


def run_attention(setup: AttentionSetup, poison: bool, ops: Ops) -> Results:
    """Prompts, chunks and single rows side by side over six steps."""
    totals = [sum(count for step in MIXED_STEPS for r, count in step if r == request) for request in range(4)]
    paged = PagedAttention(ops, setup, totals, poison=poison)
    return {key: value for step in MIXED_STEPS for key, value in paged.step(step).items()}


def run_copy(dtype: str, ops: Ops) -> Results:
    """A request whose blocks are copied elsewhere, one after the other, reads the same from the copies."""
    setup = AttentionSetup(dtype=dtype, rope="still")
    paged = PagedAttention(ops, setup, [40])
    before = paged.step([(0, 39)])
    source = paged.tables[0].tolist()
    unused = [b for b in range(setup.num_blocks) if b not in source]
    target = unused[: len(source)]
    ops.copy_blocks(paged.kv, [*zip(source, target, strict=True), (unused[5], source[0])])
    paged.tables[0] = target
    return {**before, **paged.step([(0, 1)])}


# -- sampling --------------------------------------------------------------------------------------------------
def sample_batch(entries: Sequence[dict[str, Any]]) -> SampleBatch:
    """A SampleBatch of entries given as the fields that are not at their no-op value.

    `bias` is {id: value}; `prompt` and `output` are the history.
    """

    def column(name: str, default: float, dtype: type) -> np.ndarray:
        return np.array([entry.get(name, default) for entry in entries], dtype)

    biases = [entry.get("bias", {}) for entry in entries]
    histories = [[*entry.get("prompt", ()), *entry.get("output", ())] for entry in entries]
    return SampleBatch(
        rows=column("row", 0, np.int32),
        target=column("target", -1, np.int32),
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        repetition_penalty=column("repetition_penalty", 1.0, np.float32),
        presence_penalty=column("presence_penalty", 0.0, np.float32),
        frequency_penalty=column("frequency_penalty", 0.0, np.float32),
        seed=column("seed", 0, np.uint64),
        branch=column("branch", 0, np.uint32),
        position=column("position", 0, np.uint32),
        num_logprobs=column("num_logprobs", -1, np.int32),
        bias_start=np.cumsum([0, *map(len, biases)]).astype(np.int32),
        bias_ids=np.array([i for bias in biases for i in bias], np.int32),
        bias_values=np.array([v for bias in biases for v in bias.values()], np.float32),
        history_start=np.cumsum([0, *map(len, histories)]).astype(np.int32),
        history_prompt_len=np.array([len(entry.get("prompt", ())) for entry in entries], np.int32),
        history_ids=np.array([i for history in histories for i in history], np.int32),
    )


def sampled(ops: Ops, logits: np.ndarray, entries: Sequence[dict[str, Any]]) -> Results:
    """What `sample` gives for f32 logits `[num_logits, vocab]`; only what was asked for."""
    batch, activation = load_logits(ops, logits)
    request = sample_batch(entries)
    result = ops.sample(batch, activation, request)
    asked = request.num_logprobs >= 0
    valid = np.arange(result.top_ids.shape[1]) < np.minimum(request.num_logprobs, logits.shape[1])[:, None]
    return {
        "token_ids": result.token_ids,
        "logprobs": result.logprobs[asked],
        "ranks": result.ranks[asked],
        "top_ids": result.top_ids[valid],
        "top_logprobs": result.top_logprobs[valid],
        "logits": ops.to_numpy(batch, activation),
    }


SAMPLING_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "cold": {"temperature": 1e-3},
    "hot": {"temperature": 5.0},
    "top_k": {"top_k": 5},
    "top_k_one": {"top_k": 1},
    "top_k_all": {"top_k": 2**31 - 1},
    "top_p": {"top_p": 0.6},
    "top_p_zero": {"top_p": 0.0},
    "min_p": {"min_p": 0.2},
    "all": {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8},
    "bias": {"bias": {3: 50.0, 4: 49.5, 7: -100.0}},
    "ban": {"bias": dict.fromkeys(range(90), -np.inf)},
    "repetition": {"repetition_penalty": 1.7, "prompt": [1, 2, 2, 3], "output": [5, 5, 6]},
    "counts": {"presence_penalty": 1.5, "frequency_penalty": 0.7, "prompt": [1, 1], "output": [5, 5, 6, 5]},
    "logprobs": {"num_logprobs": 5},
    "logprob_only": {"num_logprobs": 0},
    "scored": {"target": 17, "num_logprobs": 3},
    "greedy_penalised": {
        "temperature": 0.0,
        "repetition_penalty": 3.0,
        "prompt": list(range(50)),
        "num_logprobs": 20,
    },
}


def run_sampling(kind: str, vocab: int, scale: float, ops: Ops) -> Results:
    """One kind of parameters, with several seeds, branches and positions on each of four rows."""
    logits = random_rows(11, 4, vocab, scale)
    logits[2, vocab // 2 :] = logits[2, : vocab - vocab // 2]  # ties everywhere
    logits[3] = 0.5  # nothing but ties
    entries = [
        {"row": row, "seed": seed, "branch": branch, "position": 10 + row, **SAMPLING_KINDS[kind]}
        for row in range(4)
        for seed, branch in ((1, 0), (1, 3), (2**64 - 1, 0), (2**40, 1))
    ]
    return sampled(ops, logits, entries)


def run_mixed_sampling(ops: Ops) -> Results:
    """Every kind in one call, rows out of order."""
    logits = random_rows(12, len(SAMPLING_KINDS), 500, 3.0)
    entries = [{"row": i, "seed": i, **kind} for i, kind in enumerate(SAMPLING_KINDS.values())]
    return sampled(ops, logits, entries[::-1])


# -- the table -------------------------------------------------------------------------------------------------
_F = TensorType


def _linear_cases() -> list[OpCase]:
    shapes = [(1, 64, 33), (2, 32, 1), (3, 96, 16), (5, 576, 100), (8, 64, 7), (17, 160, 130), (70, 64, 48)]
    cases = [
        OpCase(
            f"linear {kind.value} rows={rows} in={width} out={out}",
            partial(run_linear, [(kind, out)], rows, width),
        )
        for kind in TensorType
        for rows, width, out in shapes
    ]
    mixed = [(_F.Q4_1, 96), (_F.Q8_0, 17), (_F.F16, 32), (_F.Q4_0, 5), (_F.F32, 8), (_F.BF16, 9)]
    cases += [OpCase(f"linear stacked rows={rows}", partial(run_linear, mixed, rows, 64)) for rows in (1, 6)]
    cases += [
        OpCase(f"linear {kind.value} odd widths", partial(run_linear, [(kind, 21)], 4, 77))
        for kind in (_F.F32, _F.F16, _F.BF16)
    ]
    return cases


def _gated_cases() -> list[OpCase]:
    kinds = [(kind, kind) for kind in TensorType] + [(_F.Q4_1, _F.Q8_0), (_F.Q4_0, _F.F16)]
    return [
        OpCase(
            f"gated {pair[0].value}+{pair[1].value} {activation} rows={rows}",
            partial(run_gated, pair, rows, activation),
        )
        for pair in kinds
        for activation, rows in (("silu", 1), ("silu", 13), ("gelu_tanh", 3))
    ]


def _attention_cases() -> list[OpCase]:
    setups = {
        "f16": AttentionSetup(),
        "f16 without rotation": AttentionSetup(rope="still"),
        "f16 heads of 64 without rotation": AttentionSetup(9, 3, 64, rope="still"),
        "f32": AttentionSetup(dtype="f32"),
        "blocks of 32": AttentionSetup(block_size=32, num_blocks=48),
        "blocks of 48": AttentionSetup(block_size=48, num_blocks=32, dtype="f32"),
        "9 over 3 heads of 64": AttentionSetup(9, 3, 64),
        "multi-head of 80": AttentionSetup(3, 3, 80, "f32"),
        "one kv head of 128": AttentionSetup(8, 1, 128),
        "linear rope": AttentionSetup(dtype="f32", rope="linear"),
        "llama3 rope": AttentionSetup(dtype="f32", rope="llama3"),
        "rope divisors": AttentionSetup(dtype="f32", rope="divisors"),
        "int8": AttentionSetup(dtype="int8"),
        "int8 without rotation": AttentionSetup(dtype="int8", rope="still"),
        "int8 in blocks of 48": AttentionSetup(9, 3, 72, "int8", block_size=48, num_blocks=32, rope="still"),
    }
    cases = [_attention_case(name, setup, poison=False) for name, setup in setups.items()]
    cases += [
        _attention_case(f"in a pool full of NaN, {dtype}", AttentionSetup(dtype=dtype), poison=True)
        for dtype in ("f16", "f32", "int8")
    ]
    return cases


def _attention_case(name: str, setup: AttentionSetup, *, poison: bool) -> OpCase:
    # A rotated key that lies halfway between two f16 values or integers may be rounded to either: one unit in 2^11
    # or in 127 of the largest apart.
    tolerance = {"f16": 2e-3, "f32": 1e-5, "int8": 3e-2}[setup.dtype] if setup.rope != "still" else 1e-5
    return OpCase(f"attention {name}", partial(run_attention, setup, poison), tolerance, tolerance)


CASES: tuple[OpCase, ...] = (
    *[OpCase(f"embed {kind.value}", partial(run_embed, kind, 64), 0, 0) for kind in TensorType],
    *[
        OpCase(
            f"rms_norm rows={rows} width={width} in_place={in_place}",
            partial(run_norm, rows, width, in_place),
        )
        for rows, width, in_place in [
            (1, 576, False),
            (3, 64, True),
            (7, 1, False),
            (33, 100, True),
            (2, 2049, False),
        ]
    ],
    *_linear_cases(),
    OpCase("head of the last row", partial(run_head, [19])),
    OpCase("head of some rows", partial(run_head, [0, 3, 4, 18])),
    OpCase("head of no row", partial(run_head, [])),
    *_gated_cases(),
    *_attention_cases(),
    *[OpCase(f"copy_blocks {dtype}", partial(run_copy, dtype)) for dtype in ("f16", "f32", "int8")],
    *[
        OpCase(f"sample {kind} vocab={vocab} scale={scale}", partial(run_sampling, kind, vocab, scale))
        for kind in SAMPLING_KINDS
        for vocab, scale in ((101, 1.0), (1024, 4.0))
    ],
    OpCase("sample 49152 tokens", partial(run_sampling, "all", 49152, 3.0)),
    OpCase("sample every kind at once", run_mixed_sampling),
)
