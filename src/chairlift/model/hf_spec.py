"""ModelSpec from a Hugging Face config.json (and the end-of-text ids of generation_config.json)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.model.fields import Fields
from chairlift.model.spec import ModelSpec, RopeParameters


def spec_from_hf(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> ModelSpec:
    """Build the spec of a LlamaForCausalLM or MistralForCausalLM folder; defaults are those of LlamaConfig.

    Raises:
        ModelLoadError: a key is missing or wrong, or asks for something we would not compute.
    """
    fields = Fields(config)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    max_positions = fields.integer("max_position_embeddings", 2048)
    _refuse_what_differs(fields, config, max_positions)
    ends = (*Fields(generation_config).integers("eos_token_id"), *fields.integers("eos_token_id"))
    return ModelSpec(
        architecture=architecture_of(config),
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", hidden_size // max(num_heads, 1)),
        max_positions=max_positions,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(config, max_positions),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False)
        if fields.has("tie_word_embeddings")
        else None,
        bos_token_id=fields.integer("bos_token_id") if fields.has("bos_token_id") else None,
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class name that config.json asks for; raises ModelLoadError when it names none or several."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ModelLoadError(f"architectures is {names!r}, not a list of one name")
    return names[0]


def _refuse_what_differs(fields: Fields, config: Mapping[str, Any], max_positions: int) -> None:
    fields.refuse_unless("hidden_act", "silu")
    fields.refuse_unless("attention_bias", False)
    fields.refuse_unless("mlp_bias", False)
    fields.refuse_unless("partial_rotary_factor", 1, 1.0)
    fields.refuse_unless("quantization_config")
    window = fields.integer("sliding_window", 0)
    if 0 < window < max_positions and fields.flag("use_sliding_window", True):
        raise ModelLoadError(f"sliding_window is {window}; sliding-window attention is not supported")
    layer_types = config.get("layer_types") or []
    if any(kind != "full_attention" for kind in layer_types):
        raise ModelLoadError(
            f"layer_types has {sorted(set(map(str, layer_types)))}; only full_attention is supported"
        )


def _rope(config: Mapping[str, Any], max_positions: int) -> RopeParameters:
    """Read `rope_parameters` (transformers 5: base and scaling together) or `rope_theta` with `rope_scaling`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ModelLoadError(f"rope_scaling is {scaling!r}, not an object")
    fields = Fields(scaling)
    base = fields.number("rope_theta", Fields(config).number("rope_theta", 10000.0))
    fields.refuse_unless("partial_rotary_factor", 1, 1.0)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind == "default":
        return RopeParameters(base=base)
    if kind == "linear":
        return RopeParameters(base=base, scaling="linear", factor=fields.number("factor"))
    if kind == "llama3":
        return RopeParameters(
            base=base,
            scaling="llama3",
            factor=fields.number("factor"),
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
            original_max_positions=fields.integer("original_max_position_embeddings", max_positions),
        )
    raise ModelLoadError(f"rope type {kind!r} is not supported; supported: default, linear, llama3")
