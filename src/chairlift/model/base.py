"""What the runner may ask of a model. One family is one file beside this one, written only in terms of `Ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chairlift.model.spec import ModelSpec

if TYPE_CHECKING:
    from chairlift.ops.interface import Activation, Batch, KVCache, KVCacheSpec


class Model(Protocol):
    """A loaded model: packed weights and the activations it computes in, both owned by one `Ops` backend."""

    spec: ModelSpec

    def forward(self, batch: Batch, kv: KVCache) -> Activation:
        """Compute one step: store the K and V of every row in `kv`, return the logits.

        The result is f32 `[num_logits, vocab_size]` on the LOGITS axis: one row for each of the batch's
        `logits_indices`. It is the same activation at every call, overwritten by the next one. A batch
        with no logits rows is fine: the cache is filled and the result has no rows.
        """
        ...

    def kv_cache_spec(self, num_blocks: int, block_size: int, dtype: str) -> KVCacheSpec:
        """The KV pool this model needs: `num_blocks` blocks of `block_size` tokens, dtype "f16", "f32" or "int8"."""
        ...
