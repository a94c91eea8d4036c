"""A Hugging Face folder that computes the same function with other weights, to measure quantisation fairly.

    python benchmarks/off_grid.py FOLDER NEW_FOLDER

An f32 checkpoint made from a quantised file lies on that file's grid, and quantising it again costs nothing. Here every
channel between two matrices is scaled by a random factor of 0.8 to 1.25, up on one side and down on the other: norm
weights against the columns that read them, v against o, up against down, the final norm against an output head that is
stored for itself. The logits stay as they were, but for rounding; of the grid nothing is left except in the embedding.
Llama-like folders with f32 weights only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chairlift.errors import ChairliftError
from chairlift.model.files import open_model_files
from chairlift.model.loader import open_weights
from chairlift.model.spec import ModelSpec

Factors = npt.NDArray[np.float64]
SEED = 1


class Scales:
    """The factor of every row and column of each tensor."""

    def __init__(self, spec: ModelSpec) -> None:
        rng = np.random.default_rng(SEED)
        self.rows: dict[str, Factors] = {}
        self.columns: dict[str, Factors] = {}

        def draw(size: int) -> Factors:
            return np.exp(rng.uniform(np.log(0.8), np.log(1.25), size))

        group = spec.num_heads // spec.num_kv_heads
        for i in range(spec.num_layers):
            at = f"model.layers.{i}."
            attention, mlp = draw(spec.hidden_size), draw(spec.hidden_size)
            self._norm(at + "input_layernorm", attention, [f"{at}self_attn.{p}_proj" for p in "qkv"])
            self._norm(at + "post_attention_layernorm", mlp, [at + "mlp.gate_proj", at + "mlp.up_proj"])
            values = draw(spec.num_kv_heads * spec.head_dim)
            self.rows[at + "self_attn.v_proj"] = values
            by_head = values.reshape(spec.num_kv_heads, 1, spec.head_dim)
            self.columns[at + "self_attn.o_proj"] = 1 / np.repeat(by_head, group, axis=1).reshape(-1)
            inner = draw(spec.intermediate_size)
            self.rows[at + "mlp.up_proj"] = inner
            self.columns[at + "mlp.down_proj"] = 1 / inner
        self._norm("model.norm", draw(spec.hidden_size), ["lm_head"])

    def _norm(self, norm: str, factors: Factors, readers: list[str]) -> None:
        self.columns[norm] = 1 / factors
        for reader in readers:
            self.columns[reader] = factors

    def apply(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """values: [rows, columns]; a norm's is one row."""
        stem = name.removesuffix(".weight")
        scaled = values * self.columns.get(stem, np.ones(1)) * self.rows.get(stem, np.ones(1))[:, None]
        return scaled.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("new_folder", type=Path)
    args = parser.parse_args()
    files = open_model_files(args.folder)
    source = open_weights(files)
    shapes = {name: source.info(name).shape for name in source.names()}
    if any(source.info(name).type_name != "F32" for name in shapes):
        sys.exit(f"{args.folder}: not all tensors are F32")
    shapes.setdefault("lm_head.weight", shapes["model.embed_tokens.weight"])
    args.new_folder.mkdir(parents=True)
    for file in args.folder.iterdir():
        if file.suffix not in (".safetensors", ".md") and file.name != "config.json":
            shutil.copy(file, args.new_folder)
    config = json.loads((args.folder / "config.json").read_text())
    (args.new_folder / "config.json").write_text(
        json.dumps({**config, "tie_word_embeddings": False}, indent=1)
    )

    header, position = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    scales = Scales(files.spec)
    with (args.new_folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            stored = name if name in source.names() else "model.embed_tokens.weight"
            out.write(scales.apply(name, source.get(stored, shape).data.view("<f4")).tobytes())


if __name__ == "__main__":
    try:
        main()
    except ChairliftError as error:
        sys.exit(f"off_grid.py: {error}")
