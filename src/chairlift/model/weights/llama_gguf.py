"""A llama-architecture GGUF under Hugging Face names.

llama.cpp stores the rows of q and k in another order: its rotary kernel for this architecture turns neighbours
(2i, 2i + 1), Hugging Face's turns halves (i, i + head_dim / 2). Whole rows move, so no value changes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from chairlift.model.spec import ModelSpec
from chairlift.model.weights.gguf import GGUFHeader
from chairlift.model.weights.mapped import TensorInfo
from chairlift.model.weights.source import check_shape, missing_tensor, reopen, view_tensor
from chairlift.ops.interface import Bytes, HostTensor

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")


class LlamaGGUFWeights:
    """`WeightSource` over a llama GGUF; maps the file for as long as it, or a tensor from it, lives."""

    def __init__(self, header: GGUFHeader, spec: ModelSpec) -> None:
        self.path: Path = header.path
        self._data = reopen(header.path, header.file_size)
        self._tensors = {_hf_name(name): info for name, info in header.tensors.items()}
        self._heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}

    def names(self) -> Collection[str]:
        """Hugging Face names where there is one, else the file's own (`rope_freqs.weight`)."""
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """Where one of `names()` lies in the file, and what it is."""
        return self._tensors[name]

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        """The tensor, q and k in Hugging Face's order; raises ModelLoadError when missing or misshapen."""
        info = self._tensors.get(name)
        if info is None:
            raise missing_tensor(self.path, _gguf_name(name))
        check_shape(self.path, info.name, info.shape, shape)
        tensor = view_tensor(self._data, info)
        projection = name.split(".")[-2]
        if projection in self._heads:
            return dataclasses.replace(tensor, data=_halves_from_pairs(tensor.data, self._heads[projection]))
        return tensor


def _halves_from_pairs(rows: Bytes, num_heads: int) -> Bytes:
    """Row (head, i, side) becomes row (head, side, i).   rows: [num_heads * head_dim, row_bytes]"""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])  # [heads, head_dim / 2, 2, row_bytes]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _hf_name(name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}"
    return _TOP.get(name, name)


def _gguf_name(name: str) -> str:
    """The file's own name for a tensor that is not there, for messages."""
    for gguf, hf in _TOP.items():
        if hf == name:
            return gguf
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    for gguf, hf in _IN_LAYER.items():
        if match and match[2] == hf:
            return f"blk.{match[1]}.{gguf}"
    return name
