"""Which KV blocks each running request owns, and which it can share because their contents are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chairlift.core.block_hash import extend_block_keys
from chairlift.core.block_pool import BlockPool
from chairlift.core.request import Request
from chairlift.errors import ServerError


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold the KV of `num_tokens` tokens."""
    return -(-num_tokens // block_size)


class BlockManager:
    """The block table of each running request, on top of a `BlockPool`.

    A table, for a request with 6 of 9 tokens computed and blocks of 4 (tables only ever grow at the end):

        tokens   | t0 t1 t2 t3 | t4 t5 .  . | .  .  .  . |
        block    |      7      |     2      |            |
                 keyed, sharable  own         not yet

    Full blocks of accepted tokens are registered under their keys, so a later request with the same beginning
    starts with them in its table. With `enable_prefix_caching=False` nothing is keyed and nothing is shared.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.num_query_tokens = 0  # looked up in the prefix cache by requests when they first boarded
        self.num_hit_tokens = 0  # of those, found
        self._tables: dict[str, list[int]] = {}

    def block_table(self, request: Request) -> list[int]:
        """A copy of the request's block table."""
        return list(self._tables[request.request_id])

    def owners(self) -> set[str]:
        """Ids of the requests that have a table."""
        return set(self._tables)

    def extend_keys(self, request: Request) -> None:
        """Compute the keys of the request's full blocks that have none yet."""
        if self.enable_prefix_caching:
            extend_block_keys(request.block_keys, request.token_ids, self.block_size, request.cache_salt)

    def find_cached_prefix(self, request: Request) -> list[int]:
        """Blocks that hold the longest known beginning of the request; changes nothing.

        Never all of it: the last token is always computed, since its logits are needed. A request that waits
        for the logprobs of its prompt finds nothing, since those need every position computed.
        """
        found: list[int] = []
        if request.prompt_logprobs is not None:
            return found
        for key in request.block_keys[: (request.num_tokens - 1) // self.block_size]:
            block_id = self.pool.find(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_blocks_taken(self, request: Request, cached: Sequence[int]) -> int:
        """Available blocks that it takes to hold all known tokens of a request that boards with `cached`."""
        shared = sum(map(self.pool.is_used, cached))
        return num_blocks_for(request.num_tokens, self.block_size) - shared

    def num_blocks_missing(self, request: Request) -> int:
        """Blocks that a running request still needs for the tokens it knows."""
        return num_blocks_for(request.num_tokens, self.block_size) - len(self._tables[request.request_id])

    def has_room(self, request: Request, num_tokens: int) -> bool:
        """Whether the request's table holds the KV of `num_tokens` tokens as it is."""
        return num_tokens <= len(self._tables[request.request_id]) * self.block_size

    def num_tokens_fitting(self, request: Request) -> int:
        """Tokens whose KV fits into the request's table, grown by every available block."""
        return (len(self._tables[request.request_id]) + self.pool.num_available) * self.block_size

    def admit(self, request: Request, cached: Sequence[int]) -> None:
        """Give a request its table, which begins with the blocks `cached` that `find_cached_prefix` found."""
        for block_id in cached:
            self.pool.acquire(block_id)
        self._tables[request.request_id] = list(cached)
        if self.enable_prefix_caching and request.num_preemptions == 0:
            self.num_query_tokens += request.num_tokens
            self.num_hit_tokens += len(cached) * self.block_size

    def grow(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Append blocks to the table until it holds `num_tokens`; return the new ones.

        Raises:
            ServerError: too few blocks are available (callers look at `num_tokens_fitting` first).
        """
        table = self._tables[request.request_id]
        missing = num_blocks_for(num_tokens, self.block_size) - len(table)
        if missing <= 0:
            return ()
        new_block_ids = tuple(self.pool.allocate() for _ in range(missing))
        table.extend(new_block_ids)
        return new_block_ids

    def register_filled(self, request: Request, num_computed_before: int) -> None:
        """Make the blocks findable that were filled since `num_computed_before` tokens had KV."""
        first, end = num_computed_before // self.block_size, request.num_computed_tokens // self.block_size
        if first == end or not self.enable_prefix_caching:
            return
        self.extend_keys(request)
        table = self._tables[request.request_id]
        for index in range(first, end):
            self.pool.register(table[index], request.block_keys[index])

    def free(self, request: Request) -> None:
        """Drop the request's table. The last block first, so that the end of a sequence is evicted before its
        beginning, which more requests can share."""
        for block_id in reversed(self._tables.pop(request.request_id)):
            self.pool.release(block_id)

    def check_integrity(self) -> None:
        """Raise ServerError when references and tables disagree, or a block is twice in a table."""
        self.pool.check_integrity()
        references: Counter[int] = Counter()
        for request_id, table in self._tables.items():
            if len(set(table)) != len(table):
                raise ServerError(f"the block table of {request_id} has a block twice: {table}")
            references.update(table)
        for block_id in range(self.pool.num_blocks):
            if self.pool.references(block_id) != references[block_id]:
                raise ServerError(
                    f"KV block {block_id} has {self.pool.references(block_id)} references, "
                    f"but is in {references[block_id]} tables"
                )
