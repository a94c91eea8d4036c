"""A folder of safetensors as a `WeightSource`: names and row order are already Hugging Face's."""

from __future__ import annotations

import mmap
from collections.abc import Collection
from pathlib import Path

from chairlift.model.weights.mapped import TensorInfo
from chairlift.model.weights.safetensors import SafetensorsHeader
from chairlift.model.weights.source import check_shape, missing_tensor, reopen, view_tensor
from chairlift.ops.interface import HostTensor


class HFFolderWeights:
    """`WeightSource` over all shards; keeps them mapped for as long as it, or a tensor from it, lives."""

    def __init__(self, header: SafetensorsHeader) -> None:
        self.path: Path = header.path
        self._tensors: dict[str, tuple[mmap.mmap, TensorInfo]] = {}
        for shard in header.shards:
            data = reopen(shard.path, shard.file_size)
            self._tensors |= {name: (data, info) for name, info in shard.tensors.items()}

    def names(self) -> Collection[str]:
        """All tensors of all shards."""
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """Where one of `names()` lies in its shard, and what it is."""
        return self._tensors[name][1]

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        """The tensor `name`; raises ModelLoadError when it is missing or has another shape."""
        if name not in self._tensors:
            raise missing_tensor(self.path, name)
        data, info = self._tensors[name]
        check_shape(self.path, name, info.shape, shape)
        return view_tensor(data, info)
