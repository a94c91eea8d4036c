"""The Llama family (Touvron et al. 2023): Llama 3.1, SmolLM2, TinyLlama, Mistral without window. Only `Ops` computes.

A decoder of pre-normalised layers: RMSNorm, grouped-query attention with rotary embedding, RMSNorm, SwiGLU.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.errors import ModelLoadError
from chairlift.model.spec import ModelSpec
from chairlift.model.weights.source import WeightSource, float_values
from chairlift.ops.interface import (
    Activation,
    Axis,
    Batch,
    GatedLinear,
    HostTensor,
    KVCache,
    KVCacheSpec,
    Linear,
    Norm,
    Ops,
    Rope,
    RopeSpec,
)

ROPE_DIVISORS = "rope_freqs.weight"  # GGUF's form of Llama 3.1 scaling


@dataclass(frozen=True, slots=True)
class Layer:
    """Packed weights of one decoder layer."""

    attention_norm: Norm  # [hidden]
    qkv: Linear  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    out: Linear  # [hidden, num_heads * head_dim]
    mlp_norm: Norm  # [hidden]
    gate_up: GatedLinear  # 2 x [intermediate, hidden]
    down: Linear  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations of one axis."""

    hidden: Activation  # [rows, hidden] the residual stream
    normed: Activation  # [rows, hidden]
    heads: Activation  # [rows, num_heads * head_dim] what attention found
    gated: Activation  # [rows, intermediate]

    @classmethod
    def allocate(cls, ops: Ops, axis: Axis, spec: ModelSpec) -> _Rows:
        widths = (
            spec.hidden_size,
            spec.hidden_size,
            spec.num_heads * spec.head_dim,
            spec.intermediate_size,
        )
        return cls(*(ops.allocate_activation(axis, width) for width in widths))


class Llama:
    """A `Model`. See `load_model` for errors."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, ops: Ops, max_positions: int) -> None:
        self.spec = spec
        self._ops = ops
        self._scale = spec.head_dim**-0.5
        load = _Loader(spec, weights, ops)
        self._embedding = load.embedding()
        self._layers = [load.layer(index) for index in range(spec.num_layers)]
        self._final_norm = load.norm("model.norm.weight")
        self._head = load.head(self._embedding)
        self._rope = load.rope(max_positions)
        load.check_nothing_left()

        self._qkv = ops.allocate_activation(Axis.TOKENS, spec.qkv_size)
        self._tokens = _Rows.allocate(ops, Axis.TOKENS, spec)
        self._wanted = _Rows.allocate(ops, Axis.LOGITS, spec)
        self._logits = ops.allocate_activation(Axis.LOGITS, spec.vocab_size)

    def kv_cache_spec(self, num_blocks: int, block_size: int, dtype: str) -> KVCacheSpec:
        """See `Model.kv_cache_spec`."""
        spec = self.spec
        return KVCacheSpec(spec.num_layers, num_blocks, block_size, spec.num_kv_heads, spec.head_dim, dtype)

    def forward(self, batch: Batch, kv: KVCache) -> Activation:
        """See `Model.forward`."""
        ops, tokens, wanted = self._ops, self._tokens, self._wanted
        *layers, last = self._layers

        ops.embed(batch, self._embedding, tokens.hidden)
        for index, layer in enumerate(layers):
            self._attend(batch, kv, index, layer)
            self._transform(batch, layer, tokens)

        # The last layer stores every row's K and V; what comes after its attention is wanted only of the rows whose
        # logits are: often one per request, sometimes none.
        self._attend(batch, kv, len(layers), last)
        ops.gather_logits_rows(batch, tokens.hidden, wanted.hidden)
        ops.gather_logits_rows(batch, tokens.heads, wanted.heads)
        self._transform(batch, last, wanted)
        ops.rms_norm(batch, wanted.hidden, self._final_norm, self.spec.rms_norm_eps, wanted.normed)
        ops.linear(batch, wanted.normed, self._head, self._logits)
        return self._logits

    def _attend(self, batch: Batch, kv: KVCache, index: int, layer: Layer) -> None:
        """heads = attention(norm(hidden)), with this step's K and V stored."""
        ops, rows, qkv = self._ops, self._tokens, self._qkv
        ops.rms_norm(batch, rows.hidden, layer.attention_norm, self.spec.rms_norm_eps, rows.normed)
        ops.linear(batch, rows.normed, layer.qkv, qkv)
        ops.rope_and_store(batch, qkv, self._rope, kv, index)
        ops.attention(batch, qkv, kv, index, self._scale, rows.heads)

    def _transform(self, batch: Batch, layer: Layer, rows: _Rows) -> None:
        """hidden += out(heads), then hidden += mlp(norm(hidden))."""
        ops = self._ops
        ops.linear(batch, rows.heads, layer.out, rows.hidden, accumulate=True)
        ops.rms_norm(batch, rows.hidden, layer.mlp_norm, self.spec.rms_norm_eps, rows.normed)
        ops.gated_linear(batch, rows.normed, layer.gate_up, rows.gated)
        ops.linear(batch, rows.gated, layer.down, rows.hidden, accumulate=True)


class _Loader:
    """Takes the tensors of a Llama out of a source, with the shapes that the spec demands."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, ops: Ops) -> None:
        self._spec = spec
        self._weights = weights
        self._ops = ops
        # Old checkpoints store the rotary frequencies, which follow from the config.
        self._left = {name for name in weights.names() if not name.endswith("rotary_emb.inv_freq")}

    def layer(self, index: int) -> Layer:
        spec, ops = self._spec, self._ops
        at = f"model.layers.{index}."
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        q = self._get(at + "self_attn.q_proj.weight", q_size, spec.hidden_size)
        k = self._get(at + "self_attn.k_proj.weight", kv_size, spec.hidden_size)
        v = self._get(at + "self_attn.v_proj.weight", kv_size, spec.hidden_size)
        out = self._get(at + "self_attn.o_proj.weight", spec.hidden_size, q_size)
        gate = self._get(at + "mlp.gate_proj.weight", spec.intermediate_size, spec.hidden_size)
        up = self._get(at + "mlp.up_proj.weight", spec.intermediate_size, spec.hidden_size)
        down = self._get(at + "mlp.down_proj.weight", spec.hidden_size, spec.intermediate_size)
        return Layer(
            attention_norm=self.norm(at + "input_layernorm.weight"),
            qkv=ops.load_linear([q, k, v]),
            out=ops.load_linear([out]),
            mlp_norm=self.norm(at + "post_attention_layernorm.weight"),
            gate_up=ops.load_gated_linear(gate, up, "silu"),
            down=ops.load_linear([down]),
        )

    def norm(self, name: str) -> Norm:
        return self._ops.load_norm(self._get(name, self._spec.hidden_size))

    def embedding(self) -> Linear:
        return self._vocabulary_matrix("model.embed_tokens.weight")

    def head(self, embedding: Linear) -> Linear:
        """The output projection; tied, that is the embedding, when the file has no head of its own."""
        name = "lm_head.weight"
        if name not in self._left and self._spec.tie_word_embeddings is not False:
            return embedding
        return self._vocabulary_matrix(name)

    def rope(self, max_positions: int) -> Rope:
        spec, rope = self._spec, self._spec.rope
        divisors: tuple[float, ...] = ()
        if ROPE_DIVISORS in self._left:
            divisors = float_values(self._weights.path, self._get(ROPE_DIVISORS, spec.head_dim // 2))
        return self._ops.make_rope(
            RopeSpec(
                head_dim=spec.head_dim,
                base=rope.base,
                max_positions=max_positions,
                scaling=rope.scaling,
                factor=rope.factor,
                low_freq_factor=rope.low_freq_factor,
                high_freq_factor=rope.high_freq_factor,
                original_max_positions=rope.original_max_positions,
                freq_divisors=divisors,
            )
        )

    def check_nothing_left(self) -> None:
        """A tensor we do not use (a bias, an expert) would mean a model that we compute wrongly."""
        if self._left:
            some = ", ".join(sorted(self._left)[:3])
            kind = self._spec.architecture
            raise ModelLoadError(
                f"{self._weights.path}: has {len(self._left)} tensors that {kind} does not use: {some}"
            )

    def _vocabulary_matrix(self, name: str) -> Linear:
        return self._ops.load_linear([self._get(name, self._spec.vocab_size, self._spec.hidden_size)])

    def _get(self, name: str, *shape: int) -> HostTensor:
        self._left.discard(name)
        return self._weights.get(name, shape)
