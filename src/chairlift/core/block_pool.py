"""Ids of KV blocks, who refers to them, and which may be reused. It knows nothing about requests."""

from __future__ import annotations

from collections import OrderedDict

from chairlift.errors import ServerError


class BlockPool:
    """A fixed number of KV blocks, each in one of three states:

    - free: no references, no key; its contents are meaningless.
    - cached: no references, but a key under which it can be found; evicted, least recently used first,
      when no free block is left.
    - used: one or more references; it has a key once it is full.

            allocate            release, no key
        free ---------> used -----------------> free
                        ^  |
                acquire |  | release, with key
                        |  v
                       cached ----------------> used, under a new owner
                                allocate (evicts: the key is forgotten)

    Every operation on a block is O(1).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block used last is warm in the caches
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._references = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._block_of_key: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks without references and key."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without references that can still be found by key."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that somebody refers to."""
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached."""
        return len(self._free) + len(self._cached)

    def is_used(self, block_id: int) -> bool:
        """True when somebody refers to the block."""
        return self._references[block_id] > 0

    def references(self, block_id: int) -> int:
        """How many owners the block has."""
        return self._references[block_id]

    def allocate(self) -> int:
        """Hand out a block with one reference, evicting the least recently used cached one if none is free.

        Raises:
            ServerError: every block is used (callers look at `num_available` first).
        """
        if self._free:
            block_id = self._free.pop()
        elif self._cached:
            block_id = self._evict()
        else:
            raise ServerError(f"all {self.num_blocks} KV blocks are in use")
        self._references[block_id] = 1
        return block_id

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        key = self._keys[block_id]
        if key is not None:
            del self._block_of_key[key]
        self._keys[block_id] = None
        self.num_evictions += 1
        return block_id

    def find(self, key: bytes) -> int | None:
        """The block with this key, used or cached; None when there is none. Changes nothing."""
        return self._block_of_key.get(key)

    def acquire(self, block_id: int) -> None:
        """Add a reference to a block that is used or cached."""
        if self._references[block_id] == 0:
            del self._cached[block_id]
        self._references[block_id] += 1

    def release(self, block_id: int) -> None:
        """Drop a reference. With the last one the block becomes cached if it has a key, else free.

        Raises:
            ServerError: nobody refers to the block.
        """
        count = self._references[block_id] - 1
        if count < 0:
            raise ServerError(f"KV block {block_id} was released more often than acquired")
        self._references[block_id] = count
        if count == 0 and self._keys[block_id] is None:
            self._free.append(block_id)
        elif count == 0:
            self._cached[block_id] = None

    def register(self, block_id: int, key: bytes) -> None:
        """Make a full, used block findable. When another block has the key already, that one stays the one."""
        if self._keys[block_id] is None and key not in self._block_of_key:
            self._keys[block_id] = key
            self._block_of_key[key] = block_id

    def check_integrity(self) -> None:
        """Raise ServerError when the three states do not partition the blocks, or keys and blocks disagree."""
        free, cached = set(self._free), set(self._cached)
        used = {block_id for block_id, count in enumerate(self._references) if count > 0}
        if len(free) != len(self._free) or len(free) + len(cached) + len(used) != self.num_blocks:
            raise ServerError(
                f"{len(free)} free + {len(cached)} cached + {len(used)} used != {self.num_blocks}"
            )
        if free & cached or (free | cached) & used:
            raise ServerError(f"KV blocks in two states: {sorted(free & cached | (free | cached) & used)}")
        if any(count < 0 for count in self._references):
            raise ServerError("a KV block has a negative number of references")
        keyed = {key: block_id for block_id, key in enumerate(self._keys) if key is not None}
        if keyed != self._block_of_key:
            raise ServerError("keys and KV blocks disagree")
        if any(self._keys[block_id] is not None for block_id in free):
            raise ServerError("a free KV block has a key")
        if any(self._keys[block_id] is None for block_id in cached):
            raise ServerError("a cached KV block has no key")
