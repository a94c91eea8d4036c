"""Runs a model straight on `Ops`, without runner or scheduler: sequences side by side in one paged cache."""

from __future__ import annotations

import numpy as np

from chairlift.model.base import Model
from chairlift.ops.interface import Ops, RaggedBatch

BLOCK_SIZE = 16


class Harness:
    """Feeds tokens to sequences and returns the logits of each one's last row."""

    def __init__(self, model: Model, ops: Ops, max_lens: list[int], dtype: str = "f32") -> None:
        self._model, self._ops = model, ops
        self._lens = [0] * len(max_lens)
        counts = [-(-length // BLOCK_SIZE) for length in max_lens]
        starts = np.cumsum([0, *counts[:-1]])
        # Blocks of a sequence in descending order, so that nothing works by luck of adjacency.
        self._tables = [
            np.arange(s + n - 1, s - 1, -1, dtype=np.int32) for s, n in zip(starts, counts, strict=True)
        ]
        self._kv = ops.allocate_kv_cache(model.kv_cache_spec(sum(counts), BLOCK_SIZE, dtype))

    def step(self, tokens: dict[int, list[int]], *, logits: bool = True) -> np.ndarray:
        """Append tokens to sequences (by index), one step; logits of each one's last row: [len(tokens), vocab]."""
        rows = [len(ids) for ids in tokens.values()]
        width = max(len(self._tables[i]) for i in tokens)
        tables = np.zeros((len(tokens), width), np.int32)
        positions, slots = [], []
        for row, (i, ids) in enumerate(tokens.items()):
            tables[row, : len(self._tables[i])] = self._tables[i]
            at = np.arange(self._lens[i], self._lens[i] + len(ids))
            positions.append(at)
            slots.append(self._tables[i][at // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + at % BLOCK_SIZE)
            self._lens[i] += len(ids)
        ends = np.cumsum([0, *rows]).astype(np.int32)
        batch = self._ops.upload_batch(
            RaggedBatch(
                input_ids=np.concatenate([np.asarray(ids, np.int32) for ids in tokens.values()]),
                positions=np.concatenate(positions).astype(np.int32),
                query_start_loc=ends,
                seq_lens=np.array([self._lens[i] for i in tokens], np.int32),
                block_tables=tables,
                slot_mapping=np.concatenate(slots).astype(np.int64),
                logits_indices=ends[1:] - 1 if logits else ends[:0],
            )
        )
        return self._ops.to_numpy(batch, self._model.forward(batch, self._kv))

    def prefill(self, index: int, ids: list[int], chunk: int) -> np.ndarray:
        """Append a prompt in chunks; only the last one computes logits: [vocab]."""
        starts = range(0, len(ids), chunk)
        for start in starts[:-1]:
            self.step({index: ids[start : start + chunk]}, logits=False)
        return self.step({index: ids[starts[-1] :]})[0]
