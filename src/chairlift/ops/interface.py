"""How it is computed: the `Ops` protocol, the only door from a model to arithmetic.

Handles (`Linear`, `GatedLinear`, `Norm`, `Rope`, `KVCache`, `Activation`, `Batch`) are opaque: the backend that made
one owns what is inside, a model only passes it on. Three rules make the backends interchangeable:

* an op names the rows it works on by the axis of its activations: TOKENS (every row of the step) or
  LOGITS (the rows whose logits are wanted), never by a number, so a step can be recorded once and replayed
  (`Ops.capture`);
* activations live in an arena sized once, for the largest step, when the model is built;
* only token ids and requested logprobs ever come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

Linear = NewType("Linear", object)  # [out, in] weights, packed
GatedLinear = NewType("GatedLinear", object)  # gate and up, [out, in] each, and the activation between them
Norm = NewType("Norm", object)  # [width]
Rope = NewType("Rope", object)  # cos and sin, [max_positions, head_dim / 2]
KVCache = NewType("KVCache", object)  # all layers' blocks
Activation = NewType("Activation", object)  # f32 [rows of an axis, width] in the arena
Batch = NewType("Batch", object)  # a RaggedBatch where the backend can use it

OpSeconds = tuple[
    float, float
]  # of an op: from its call to its return, and in its tiles, added up over the threads


class TensorType(Enum):
    """How the bytes of a tensor's row are laid out. Quantised formats: ggml-common.h of llama.cpp, GGUF spec.

    Q4_0: blocks of 32 = f16 d, 16 bytes of nibbles (low nibbles first 16 values), w = d * (q - 8).
    Q4_1: blocks of 32 = f16 d, f16 m, 16 bytes of nibbles, w = d * q + m.
    Q8_0: blocks of 32 = f16 d, 32 x int8, w = d * q.
    """

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q8_0 = "Q8_0"

    @property
    def block_values(self) -> int:
        """Values in one block (1 for plain floats)."""
        return 32 if self.name.startswith("Q") else 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return {"F32": 4, "F16": 2, "BF16": 2, "Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[self.name]


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor as it lies in a file, read-only and usually memory-mapped.

    `data` is uint8 `[rows, row_bytes]`; `shape` counts values, outermost first: `(out, in)`, or `(width,)` with
    one row. Rows may be permuted or stacked by indexing `data`: a row's bytes are self-contained.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: Bytes


class Axis(Enum):
    """Which rows an activation has."""

    TOKENS = "tokens"  # RaggedBatch.num_tokens rows
    LOGITS = "logits"  # len(RaggedBatch.logits_indices) rows


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding (Su et al. 2021), pairs (i, i + head_dim/2) as Hugging Face lays them out.

    inv_freq[i] = base^(-2i/head_dim), then scaled: "linear" divides positions by `factor`; "llama3" is the
    wavelength-dependent interpolation of Llama 3.1. Then `freq_divisors` of the file, if any, divide it.
    """

    head_dim: int
    base: float
    max_positions: int
    scaling: str = "none"  # none | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    freq_divisors: tuple[float, ...] = ()  # [head_dim / 2] of a GGUF `rope_freqs.weight`; divides inv_freq


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape of the KV pool: `num_layers` times `num_blocks` blocks of `block_size` tokens, K and V."""

    num_layers: int
    num_blocks: int
    block_size: int  # a multiple of 16
    num_kv_heads: int
    head_dim: int
    dtype: str  # f16 | f32 | int8, which has one f32 scale per (token, kv head) for K and V each

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes over all layers, K and V."""
        dim = self.head_dim
        head_bytes = {"f16": 2 * dim, "f32": 4 * dim, "int8": dim + 4}[self.dtype]
        return 2 * self.num_layers * self.block_size * self.num_kv_heads * head_bytes


@dataclass(slots=True)
class RaggedBatch:
    """All arrays of one step: one row per token, rows of a request adjacent, no padding.

    Row r of request i (query_start_loc[i] <= r < query_start_loc[i + 1]) is at `positions[r]`; it attends to
    positions 0..positions[r] of its own request, found through `block_tables[i]`.
    """

    input_ids: Int32  # [num_tokens]
    positions: Int32  # [num_tokens]
    query_start_loc: Int32  # [num_reqs + 1]
    seq_lens: Int32  # [num_reqs] KV length after this step
    block_tables: Int32  # [num_reqs, max_blocks], C-contiguous; unused entries are 0 and never read
    slot_mapping: Int64  # [num_tokens] block_id * block_size + offset
    logits_indices: Int32  # [num_logits] ascending rows whose logits are needed

    @property
    def num_tokens(self) -> int:
        """Rows of the step."""
        return len(self.input_ids)

    @property
    def num_reqs(self) -> int:
        """Requests that have rows in the step."""
        return len(self.seq_lens)


@dataclass(slots=True)
class SampleBatch:
    """What to draw from the logits; entry i works on logits row `rows[i]`. Ragged lists are CSR: `*_start[i]:[i + 1]`.

    Order per entry: bias and bans, penalties, temperature, top-k, top-p, min-p, draw. A `target` >= 0 draws
    nothing: it only reports that token's logprob (prompt logprobs).
    """

    rows: Int32  # [n] row of the logits activation
    target: Int32  # [n] token to score, or -1 to draw
    temperature: Float32  # [n] 0 = greedy: the highest logit, ties to the lowest id
    top_k: Int32  # [n] 0 = off
    top_p: Float32  # [n] 1 = off, 0 = the most likely token
    min_p: Float32  # [n] 0 = off
    repetition_penalty: Float32  # [n] 1 = off; on every distinct token of prompt and output
    presence_penalty: Float32  # [n] on distinct output tokens
    frequency_penalty: Float32  # [n] times their count in the output
    seed: UInt64  # [n]
    branch: UInt32  # [n]
    position: UInt32  # [n] position in the sequence of the token to draw
    num_logprobs: Int32  # [n] -1 = none; k = the token's own logprob and rank, and the k most likely
    bias_start: Int32  # [n + 1]
    bias_ids: Int32  # [bias_start[n]]
    bias_values: Float32  # [bias_start[n]] added to the logit; -inf bans
    history_start: Int32  # [n + 1] empty for entries without penalties
    history_prompt_len: Int32  # [n] how many of the entry's history tokens are prompt
    history_ids: Int32  # [history_start[n]] prompt then output tokens


@dataclass(slots=True)
class SampleResult:
    """Token ids, and logprobs where asked. Logprobs are the log-softmax of the raw logits."""

    token_ids: Int32  # [n] drawn, or the target
    logprobs: Float32  # [n] of token_ids (undefined where num_logprobs < 0)
    ranks: Int32  # [n] 1 + tokens ordered before it by (logit desc, id asc)
    top_ids: Int32  # [n, max(num_logprobs)] most likely first; row i is valid up to num_logprobs[i]
    top_logprobs: Float32  # [n, max(num_logprobs)]

    @classmethod
    def blank(cls, request: SampleBatch) -> SampleResult:
        """A result of the right shapes, to be filled in."""
        count = len(request.rows)
        width = max(0, int(request.num_logprobs.max(initial=0)))
        words: Int32 = np.zeros((3, count), np.int32)
        return cls(
            token_ids=words[0],
            logprobs=words[1].view(np.float32),
            ranks=words[2],
            top_ids=np.zeros((count, width), np.int32),
            top_logprobs=np.zeros((count, width), np.float32),
        )


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What all threads together can do at most: no kernel is faster. Per second."""

    flops: float  # f32, two in a fused multiply-add
    int8_ops: float  # products of 8-bit integers and their additions, each counted
    read_bytes: float  # from memory


@dataclass(frozen=True, slots=True)
class OpWork:
    """What an op of a program can't do without in a step. Activations stay in the caches and don't count."""

    name: str  # kind and shape
    flops: float  # f32, two in a fused multiply-add
    int8_ops: float
    num_bytes: float  # of weights, K and V, each read once

    def least_seconds(self, limits: MachineLimits) -> float:
        """The bound: the larger of what arithmetic takes and what reading takes."""
        arithmetic = self.flops / limits.flops + self.int8_ops / limits.int8_ops
        return max(arithmetic, self.num_bytes / limits.read_bytes)


class Program(Protocol):
    """A forward pass, recorded once: it runs for any step, without the model's Python."""

    def run(self, batch: Batch, times: list[OpSeconds] | None = None) -> Activation:
        """Compute a step and return the activation that the forward pass returned; `times` gets one entry an op.

        Raises:
            ValueError: an op can't take this batch; nothing has been computed then.
        """
        ...

    def work(self, batch: Batch) -> list[OpWork]:
        """What the ops of a step can't do without, one entry an op; computes nothing. See `run` for errors."""
        ...


class Ops(Protocol):
    """The arithmetic a model is written in. See the module docstring for the rules."""

    name: str  # "cpu" or "reference"

    def describe(self) -> dict[str, str]:
        """Facts for `chairlift env`: isa, threads, ..."""
        ...

    def measure_limits(self) -> MachineLimits | None:
        """Probe this machine, about a second; None where the backend's speed is not the machine's."""
        ...

    # -- load ------------------------------------------------------------------------------------------------
    def quantize(self, tensor: HostTensor, kind: TensorType) -> HostTensor:
        """Round F32, F16 or BF16 weights to Q8_0 or Q4_1, the same bytes in every backend; see `ops.quantize`."""
        ...

    def load_linear(self, parts: Sequence[HostTensor]) -> Linear:
        """Pack `[out, in]` weights; several parts (same `in`, any supported types) are stacked along `out`."""
        ...

    def load_gated_linear(self, gate: HostTensor, up: HostTensor, activation: str) -> GatedLinear:
        """Pack the gate and up projections `[out, in]` of an MLP; activation is "silu" or "gelu_tanh"."""
        ...

    def load_norm(self, weight: HostTensor) -> Norm:
        """Load a norm's weight `[width]`."""
        ...

    def make_rope(self, spec: RopeSpec) -> Rope:
        """Build the cos and sin tables once."""
        ...

    def allocate_kv_cache(self, spec: KVCacheSpec) -> KVCache:
        """Reserve the KV pool (lazily backed: untouched blocks cost no memory)."""
        ...

    def allocate_activation(self, axis: Axis, width: int) -> Activation:
        """Reserve an activation of `width` f32 columns in the arena."""
        ...

    # -- step ------------------------------------------------------------------------------------------------
    def capture(self, forward: Callable[[Batch], Activation]) -> Program:
        """Record the ops that `forward` calls on the batch it is given, once, for every step to come.

        It may call those from `embed` to `gather_logits_rows` below, and must call the same ones for every batch.
        """
        ...

    def upload_batch(self, batch: RaggedBatch) -> Batch:
        """Check a batch (raises ValueError) and bring it where the ops below can read it."""
        ...

    def embed(self, batch: Batch, table: Linear, out: Activation) -> None:
        """out[t] = row input_ids[t] of the table, dequantised."""
        ...

    def rms_norm(self, batch: Batch, x: Activation, norm: Norm, eps: float, out: Activation) -> None:
        """out = x / sqrt(mean(x^2) + eps) * weight, per row (Zhang & Sennrich 2019). `out` may be `x`."""
        ...

    def linear(
        self, batch: Batch, x: Activation, w: Linear, out: Activation, *, accumulate: bool = False
    ) -> None:
        """out = x @ w.T, or out += x @ w.T (the residual add, fused)."""
        ...

    def gated_linear(self, batch: Batch, x: Activation, w: GatedLinear, out: Activation) -> None:
        """out = activation(x @ gate.T) * (x @ up.T)."""
        ...

    def rope_and_store(self, batch: Batch, qkv: Activation, rope: Rope, kv: KVCache, layer: int) -> None:
        """Rotate q in place; rotate k, round k and v to the cache's dtype and store them at slot_mapping.

        qkv: [num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim] as q | k | v.
        """
        ...

    def attention(
        self, batch: Batch, qkv: Activation, kv: KVCache, layer: int, scale: float, out: Activation
    ) -> None:
        """Causal grouped-query attention over the paged cache; the step's own K and V must be stored before.

        Reads q from the first columns of qkv; out: [num_tokens, num_q_heads * head_dim].
        """
        ...

    def gather_logits_rows(self, batch: Batch, x: Activation, out: Activation) -> None:
        """out[i] = x[logits_indices[i]]: from the TOKENS axis to the LOGITS axis."""
        ...

    def sample(self, batch: Batch, logits: Activation, request: SampleBatch) -> SampleResult:
        """Draw or score tokens; logits: [num_logits, vocab] on the LOGITS axis, left unchanged."""
        ...

    def copy_blocks(self, kv: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) in every layer, in order."""
        ...

    def to_numpy(self, batch: Batch, x: Activation) -> Float32:
        """A copy of an activation's live rows, for tests and debugging only."""
        ...

    def close(self) -> None:
        """Stop worker threads."""
        ...
