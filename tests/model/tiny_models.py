"""Tiny random Llamas, written as a Hugging Face folder and as the equivalent GGUF file."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chairlift.ops.dequantize import dequantize
from chairlift.ops.interface import HostTensor, TensorType
from model.gguf_writer import GGUFImage

EPS = 2.0**-17  # the same number in GGUF's f32 and in JSON

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass
class TinyModel:
    """Sizes, and random weights `name -> HostTensor` under Hugging Face names, made from `seed`.

    Matrices have type `type_name`, norms are F32.
    """

    vocab_size: int = 128
    hidden_size: int = 64
    intermediate_size: int = 96
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    tied: bool = True
    type_name: str = "F32"
    rope: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        for i in range(self.num_layers):
            shapes |= {
                f"model.layers.{i}.input_layernorm.weight": (self.hidden_size,),
                f"model.layers.{i}.self_attn.q_proj.weight": (q, self.hidden_size),
                f"model.layers.{i}.self_attn.k_proj.weight": (kv, self.hidden_size),
                f"model.layers.{i}.self_attn.v_proj.weight": (kv, self.hidden_size),
                f"model.layers.{i}.self_attn.o_proj.weight": (self.hidden_size, q),
                f"model.layers.{i}.post_attention_layernorm.weight": (self.hidden_size,),
                f"model.layers.{i}.mlp.gate_proj.weight": (self.intermediate_size, self.hidden_size),
                f"model.layers.{i}.mlp.up_proj.weight": (self.intermediate_size, self.hidden_size),
                f"model.layers.{i}.mlp.down_proj.weight": (self.hidden_size, self.intermediate_size),
            }
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        self.weights = {name: _random(rng, name, shape, self.type_name) for name, shape in shapes.items()}

    def config(self) -> dict[str, Any]:
        """The folder's config.json; a setting of None in `rope` or `extra` is left out."""
        settings = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": 256,
            "rms_norm_eps": EPS,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_theta": 10000.0,
            **self.rope,
            **self.extra,
        }
        return {key: value for key, value in settings.items() if value is not None}

    def write_folder(self, folder: Path) -> Path:
        """Write config.json and model.safetensors (quantised types as F32) and return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        write_safetensors(folder / "model.safetensors", {name: _plain(t) for name, t in self.weights.items()})
        return folder

    def gguf(self) -> GGUFImage:
        """The same model as llama.cpp's converter lays it out: other names, q and k rows in pairs."""
        image = GGUFImage(
            {
                "general.architecture": "llama",
                "llama.vocab_size": self.vocab_size,
                "llama.context_length": 256,
                "llama.embedding_length": self.hidden_size,
                "llama.feed_forward_length": self.intermediate_size,
                "llama.block_count": self.num_layers,
                "llama.attention.head_count": self.num_heads,
                "llama.attention.head_count_kv": self.num_kv_heads,
                "llama.attention.key_length": self.head_dim,
                "llama.attention.value_length": self.head_dim,
                "llama.attention.layer_norm_rms_epsilon": EPS,
                "llama.rope.freq_base": 10000.0,
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
            }
        )
        for name, tensor in self.weights.items():
            rows = tensor.data
            if "q_proj" in name or "k_proj" in name:
                heads = self.num_heads if "q_proj" in name else self.num_kv_heads
                rows = rows.reshape(heads, 2, self.head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)
            if tensor.type is TensorType.F32:
                image.add(gguf_name(name), np.frombuffer(rows.tobytes(), "<f4").reshape(tensor.shape))
            else:
                image.add(gguf_name(name), rows, tensor.type.name)
        return image


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in top:
        return top[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.weight"


def write_safetensors(path: Path, tensors: dict[str, HostTensor]) -> Path:
    """Write a safetensors file of F32, F16 or BF16 tensors."""
    header, body = {}, b""
    for name, tensor in tensors.items():
        data = tensor.data.tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": tensor.type.name, "shape": list(tensor.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...], type_name: str) -> HostTensor:
    if len(shape) == 1:
        values = (1.0 + 0.1 * rng.standard_normal(shape)).astype("<f4")
        return HostTensor(name, TensorType.F32, shape, values.view(np.uint8).reshape(1, -1))
    values = (rng.standard_normal(shape) * 0.2).astype("<f4")
    return HostTensor(name, TensorType(type_name), shape, _encode(rng, values, type_name))


def _encode(rng: np.random.Generator, values: np.ndarray, type_name: str) -> np.ndarray:
    """Bytes `[rows, row_bytes]`; quantised types get random quants with small scales."""
    rows = len(values)
    if type_name == "F32":
        return values.view(np.uint8).reshape(rows, -1)
    if type_name == "F16":
        return values.astype("<f2").view(np.uint8).reshape(rows, -1)
    if type_name == "BF16":
        return np.ascontiguousarray(values.view("<u2")[:, 1::2]).view(np.uint8).reshape(rows, -1)
    kind = TensorType(type_name)
    blocks = values.shape[1] // kind.block_values
    data = rng.integers(0, 256, (rows, blocks, kind.block_bytes), np.uint8)
    num_scales = 2 if type_name == "Q4_1" else 1
    largest = 0.002 if type_name == "Q8_0" else 0.03  # weights of about +-0.25
    scales = rng.uniform(largest / 30, largest, (rows, blocks, num_scales)).astype("<f2")
    data[:, :, : 2 * num_scales] = scales.view(np.uint8)
    return data.reshape(rows, -1)


def _plain(tensor: HostTensor) -> HostTensor:
    if tensor.type.block_values == 1:
        return tensor
    values = dequantize(tensor).astype("<f4")
    return HostTensor(
        tensor.name, TensorType.F32, tensor.shape, values.view(np.uint8).reshape(len(values), -1)
    )
