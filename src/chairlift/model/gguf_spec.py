"""ModelSpec from the metadata of a GGUF file (keys: the GGUF specification of ggml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.model.fields import Fields
from chairlift.model.spec import ModelSpec, RopeParameters

# Each of these ends a generation: end of sequence, of turn (chat), of message (tool calls).
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def spec_from_gguf(metadata: Mapping[str, Any]) -> ModelSpec:
    """Build the spec of a llama-architecture GGUF.

    Raises:
        ModelLoadError: a key is missing or wrong, or asks for something we would not compute.
    """
    architecture = Fields(metadata).text("general.architecture")
    fields = Fields(metadata, f"{architecture}.")
    tokenizer = Fields(metadata, "tokenizer.ggml.")
    num_heads = fields.integer("attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
    max_positions = fields.integer("context_length")
    _refuse_what_differs(fields, head_dim, max_positions)
    return ModelSpec(
        architecture=architecture,
        vocab_size=_vocab_size(metadata, fields),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=max_positions,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(fields),
        bos_token_id=tokenizer.integer("bos_token_id") if tokenizer.has("bos_token_id") else None,
        eos_token_ids=tuple(dict.fromkeys(i for key in _END_KEYS for i in tokenizer.integers(key))),
    )


def _refuse_what_differs(fields: Fields, head_dim: int, max_positions: int) -> None:
    fields.refuse_unless("attention.value_length", head_dim)
    fields.refuse_unless("rope.dimension_count", head_dim)
    fields.refuse_unless("rope.scaling.attn_factor", 0.0, 1.0)
    fields.refuse_unless("attention.causal", True)
    fields.refuse_unless("expert_count", 0)
    for key in ("logit_scale", "residual_scale", "embedding_scale", "attention.scale"):
        fields.refuse_unless(key, 0.0)
    window = fields.integer("attention.sliding_window", 0)
    if 0 < window < max_positions:
        raise ModelLoadError(
            f"attention.sliding_window is {window}; sliding-window attention is not supported"
        )


def _vocab_size(metadata: Mapping[str, Any], fields: Fields) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else fields.integer("vocab_size")


def _rope(fields: Fields) -> RopeParameters:
    """Llama 3.1 scaling is not here: GGUF stores its divisors as the tensor `rope_freqs.weight`."""
    base = fields.number("rope.freq_base", 10000.0)
    scaling = fields.text("rope.scaling.type", "none")
    if scaling == "linear" or (scaling == "none" and fields.has("rope.scale_linear")):
        key = "rope.scaling.factor" if fields.has("rope.scaling.factor") else "rope.scale_linear"
        return RopeParameters(base=base, scaling="linear", factor=fields.number(key))
    if scaling != "none":
        raise ModelLoadError(f"rope.scaling.type is {scaling!r}; supported: none, linear")
    return RopeParameters(base=base)
