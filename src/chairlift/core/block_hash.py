"""Keys of full KV blocks: equal keys mean equal tokens from the start of the sequence to the end of the block.

`blake2b` and not `hash()`: a collision would serve one user's KV to another, and `hash()` of a tuple of ints
is easy to collide on purpose.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 32


def root_key(*parts: str) -> bytes:
    """The parent of a sequence's first block. `parts` (salt, adapter, ...) keep unlike sequences apart."""
    # Lengths first, so that ("ab", "") and ("a", "b") differ.
    texts = [part.encode() for part in parts]
    header = array("q", [len(text) for text in texts]).tobytes()
    return blake2b(header + b"".join(texts), digest_size=KEY_BYTES, person=b"root").digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a full block that holds `token_ids` and follows the block with key `parent`."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=KEY_BYTES, person=b"block").digest()


def extend_block_keys(keys: list[bytes], token_ids: Sequence[int], block_size: int, salt: str) -> None:
    """Append to `keys` those of the full blocks of `token_ids` that have none yet."""
    parent = keys[-1] if keys else root_key(salt)
    for start in range(len(keys) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = block_key(parent, token_ids[start : start + block_size])
        keys.append(parent)
