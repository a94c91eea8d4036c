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


class Llama:
    """A `Model`. See `load_model` for errors."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, ops: Ops, max_positions: int) -> None:
        self.spec = spec
        self._ops = ops
        load = _Loader(spec, weights, ops)
        self._embedding = load.embedding()
        self._layers = [load.layer(index) for index in range(spec.num_layers)]
        self._final_norm = load.norm("model.norm.weight")
        self._head = load.head(self._embedding)
        self._rope = load.rope(max_positions)
        load.check_nothing_left()

        tokens, logits = Axis.TOKENS, Axis.LOGITS
        self._hidden = ops.allocate_activation(tokens, spec.hidden_size)  # the residual stream
        self._normed = ops.allocate_activation(tokens, spec.hidden_size)
        self._qkv = ops.allocate_activation(tokens, spec.qkv_size)
        self._heads = ops.allocate_activation(tokens, spec.num_heads * spec.head_dim)
        self._gated = ops.allocate_activation(tokens, spec.intermediate_size)
        self._last = ops.allocate_activation(logits, spec.hidden_size)
        self._logits = ops.allocate_activation(logits, spec.vocab_size)

    def kv_cache_spec(self, num_blocks: int, block_size: int, dtype: str) -> KVCacheSpec:
        """See `Model.kv_cache_spec`."""
        spec = self.spec
        return KVCacheSpec(spec.num_layers, num_blocks, block_size, spec.num_kv_heads, spec.head_dim, dtype)

    def forward(self, batch: Batch, kv: KVCache) -> Activation:
        """See `Model.forward`."""
        ops, eps = self._ops, self.spec.rms_norm_eps
        scale = self.spec.head_dim**-0.5
        x, normed, qkv, heads, gated = self._hidden, self._normed, self._qkv, self._heads, self._gated

        ops.embed(batch, self._embedding, x)
        for index, layer in enumerate(self._layers):
            ops.rms_norm(batch, x, layer.attention_norm, eps, normed)
            ops.linear(batch, normed, layer.qkv, qkv)
            ops.rope_and_store(batch, qkv, self._rope, kv, index)
            ops.attention(batch, qkv, kv, index, scale, heads)
            ops.linear(batch, heads, layer.out, x, accumulate=True)

            ops.rms_norm(batch, x, layer.mlp_norm, eps, normed)
            ops.gated_linear(batch, normed, layer.gate_up, gated)
            ops.linear(batch, gated, layer.down, x, accumulate=True)

        # From here on only the rows whose logits are wanted: often one per request, sometimes none.
        ops.gather_logits_rows(batch, x, self._last)
        ops.rms_norm(batch, self._last, self._final_norm, eps, self._last)
        ops.linear(batch, self._last, self._head, self._logits)
        return self._logits


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
