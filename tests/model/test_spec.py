"""Model descriptions from GGUF metadata and config.json: read in all their spellings, refused by name otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.gguf_spec import spec_from_gguf
from chairlift.model.hf_spec import spec_from_hf
from chairlift.model.spec import RopeParameters
from model.tiny_models import TinyModel

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def hf(changes: dict[str, Any], generation_config: dict[str, Any] | None = None) -> Any:
    return spec_from_hf({**TinyModel().config(), **changes}, generation_config or {})


def gguf(changes: dict[str, Any]) -> Any:
    return spec_from_gguf({**TinyModel().gguf().metadata, **changes})


def test_both_formats_describe_the_same_model() -> None:
    """GGUF metadata and config.json of one model become the same spec, but for the names and what GGUF does not say."""
    theirs = dataclasses.replace(hf({}), architecture="llama", tie_word_embeddings=None)
    assert gguf({}) == theirs
    assert theirs.qkv_size == (4 + 2 * 2) * 16


def test_defaults_of_config_json() -> None:
    """What LlamaConfig lets a file leave out: head_dim, kv heads, epsilon, context, rope base, tying."""
    config = TinyModel().config()
    for key in (
        "head_dim",
        "num_key_value_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
        "tie_word_embeddings",
        "hidden_act",
    ):
        del config[key]
    spec = spec_from_hf(config, {})
    assert (spec.head_dim, spec.num_kv_heads, spec.rms_norm_eps, spec.max_positions) == (16, 4, 1e-6, 2048)
    assert (spec.rope, spec.tie_word_embeddings) == (RopeParameters(), None)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_theta": 5e5}, RopeParameters(base=5e5)),
        ({"rope_scaling": None}, RopeParameters()),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeParameters(scaling="linear", factor=2.0)),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            RopeParameters(scaling="linear", factor=2.0),
        ),
        ({"rope_scaling": {"rope_type": "default"}}, RopeParameters()),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, RopeParameters(base=1e5)),
        (
            {"rope_scaling": LLAMA3, "rope_theta": 5e5},
            RopeParameters(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
        (
            {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
            RopeParameters(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_rope_spellings(rope: dict[str, Any], expected: RopeParameters) -> None:
    """Both generations of spelling, `rope_scaling` and `rope_parameters`, mean the same."""
    assert hf(rope).rope == expected


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (None, [7, 8], (7, 8)),
        (2, [7, 2], (7, 2)),
        (None, None, ()),
    ],
)
def test_end_of_text_ids(config: Any, generation: Any, expected: tuple[int, ...]) -> None:
    """One id, a list, or those of generation_config.json: all of them end a generation."""
    assert hf({"eos_token_id": config}, {"eos_token_id": generation}).eos_token_ids == expected


def test_end_of_turn_ids_of_a_gguf() -> None:
    """A GGUF names its end of text, of turn and of message apart; each ends a generation."""
    turn = {"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eom_token_id": 2}
    assert gguf(turn).eos_token_ids == (2, 9)


def test_vocabulary_size_of_a_gguf() -> None:
    """The tokens themselves say how many there are; the number is needed only without them."""
    assert gguf({"tokenizer.ggml.tokens": ["a"] * 10}).vocab_size == 10
    assert gguf({"llama.vocab_size": 77}).vocab_size == 77


@pytest.mark.parametrize("window", [256, 1000, None])
def test_window_that_hides_nothing(window: int | None) -> None:
    """A sliding window as long as the context, or switched off, is no window."""
    assert hf({"architectures": ["MistralForCausalLM"], "sliding_window": window}).max_positions == 256
    hf({"sliding_window": 16, "use_sliding_window": False})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 128}, "sliding_window is 128"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has .*sliding_attention"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "rope factor is 0.0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor - low_freq_factor is 0.0"),
        ({"rope_scaling": "linear"}, "not an object"),
        ({"rope_theta": -1.0}, "rope base is -1.0"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', not an integer"),
        ({"hidden_size": True}, "hidden_size is True, not an integer"),
        ({"hidden_size": 2**40}, "hidden_size is 1099511627776, outside"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_attention_heads": 0}, "num_heads is 0"),
        ({"num_key_value_heads": 0}, "num_kv_heads is 0"),
        ({"num_key_value_heads": 3}, "num_heads is 4, not a multiple of num_kv_heads 3"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"max_position_embeddings": 2**40}, "max_positions is 1099511627776, outside"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"eos_token_id": 128}, "eos_token_id 128 is outside the vocabulary"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ({"architectures": ["A", "B"]}, "architectures is"),
        ({"architectures": None}, "architectures is None"),
    ],
)
def test_config_json_refused(changes: dict[str, Any], words: str) -> None:
    """What we would compute wrongly, and what is no description at all, is refused by name."""
    with pytest.raises(ModelLoadError, match=words):
        hf(changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.attention.sliding_window": 128}, "sliding_window is 128"),
        ({"llama.expert_count": 8}, "llama.expert_count is 8"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8"),
        ({"llama.attention.value_length": 32}, "llama.attention.value_length is 32"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type is 'yarn'"),
        ({"llama.rope.scaling.type": "linear"}, "rope.scale_linear is missing"),
        ({"llama.attention.head_count_kv": [2, 4]}, r"head_count_kv is \[2, 4\], not an integer"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale is 2.0"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"general.architecture": None}, "general.architecture is missing"),
        ({"tokenizer.ggml.eos_token_id": 500}, "eos_token_id 500 is outside the vocabulary"),
    ],
)
def test_gguf_refused(changes: dict[str, Any], words: str) -> None:
    """The same for GGUF metadata, with its own key names."""
    with pytest.raises(ModelLoadError, match=words):
        gguf(changes)
