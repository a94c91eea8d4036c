import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from chairlift.core.block_pool import BlockPool
from chairlift.errors import ServerError


def test_blocks_move_between_the_three_states():
    """A block is free, then used, then cached if it has a key and free if not."""
    pool = BlockPool(3)
    keyed, plain = pool.allocate(), pool.allocate()
    pool.register(keyed, b"k")
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 0, 2)
    pool.release(keyed)
    pool.release(plain)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 1, 0)
    pool.acquire(keyed)
    assert pool.find(b"k") == keyed
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 0, 1)


def test_free_blocks_go_before_cached_ones_and_the_oldest_cached_first():
    """Eviction takes the least recently used cached block, and only when no free one is left."""
    pool = BlockPool(3)
    a, b, c = (pool.allocate() for _ in range(3))
    for block_id, key in ((a, b"a"), (b, b"b")):
        pool.register(block_id, key)
    for block_id in (a, b, c):
        pool.release(block_id)
    pool.acquire(a)
    pool.release(a)  # now b is the one not used for longest
    assert [pool.allocate() for _ in range(3)] == [c, b, a]
    assert pool.num_evictions == 2
    assert pool.find(b"a") is None


def test_a_second_block_with_the_same_key_is_not_cached():
    """When two blocks hold the same tokens, the first stays the one that is found."""
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, b"k")
    pool.register(second, b"k")
    assert pool.find(b"k") == first
    pool.release(second)
    assert pool.num_free == 1


def test_a_full_pool_and_a_double_release_are_errors():
    """Handing out more blocks than there are, or taking one back twice, raises and says which."""
    pool = BlockPool(1)
    block_id = pool.allocate()
    with pytest.raises(ServerError, match="all 1 KV blocks are in use"):
        pool.allocate()
    pool.release(block_id)
    with pytest.raises(ServerError, match="block 0 was released"):
        pool.release(block_id)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda pool: pool._free.append(pool._free[0]), "!= 4"),
        (lambda pool: pool._free.pop(), "!= 4"),
        (lambda pool: pool._references.__setitem__(pool._free[0], -1), "negative"),
        (lambda pool: pool._keys.__setitem__(pool._free[0], b"x"), "disagree"),
        (lambda pool: pool._block_of_key.clear(), "disagree"),
    ],
)
def test_check_integrity_notices_damage(corrupt, message):
    """The check is not vacuous: each kind of damage is reported."""
    pool = BlockPool(4)
    pool.register(pool.allocate(), b"k")
    pool.check_integrity()
    corrupt(pool)
    with pytest.raises(ServerError, match=message):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Any sequence of operations, against a model that is a dict of references and a list in LRU order."""

    held = Bundle("held")  # one entry per reference

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(5)
        self.references = {}
        self.keys = {}
        self.lru = []

    @precondition(lambda self: self.pool.num_available > 0)
    @rule(target=held)
    def allocate(self):
        had_free, block_id = self.pool.num_free > 0, self.pool.allocate()
        assert block_id not in self.references
        if had_free:
            assert block_id not in self.keys
        else:
            assert block_id == self.lru.pop(0)
            del self.keys[block_id]
        self.references[block_id] = 1
        return block_id

    @rule(target=held, block_id=held)
    def acquire_used(self, block_id):
        if block_id not in self.references:
            return block_id
        self.pool.acquire(block_id)
        self.references[block_id] += 1
        return block_id

    @rule(target=held, number=st.integers(0, 6))
    def acquire_by_key(self, number):
        key = b"%d" % number
        block_id = self.pool.find(key)
        assert block_id == next((b for b, k in self.keys.items() if k == key), None)
        if block_id is None:
            return -1
        if block_id in self.lru:
            self.lru.remove(block_id)
        self.pool.acquire(block_id)
        self.references[block_id] = self.references.get(block_id, 0) + 1
        return block_id

    @rule(block_id=held, number=st.integers(0, 6))
    def register(self, block_id, number):
        if block_id not in self.references:
            return
        key = b"%d" % number
        self.pool.register(block_id, key)
        if block_id not in self.keys and key not in self.keys.values():
            self.keys[block_id] = key

    @rule(block_id=consumes(held))
    def release(self, block_id):
        if block_id not in self.references:
            return
        self.pool.release(block_id)
        self.references[block_id] -= 1
        if self.references[block_id] == 0:
            del self.references[block_id]
            if block_id in self.keys:
                self.lru.append(block_id)

    @invariant()
    def holds_together(self):
        self.pool.check_integrity()
        assert self.pool.num_used == len(self.references)
        assert self.pool.num_cached == len(self.lru)
        assert self.pool.num_available == 5 - len(self.references)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
