import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chairlift.core.block_manager import BlockManager, num_blocks_for
from chairlift.core.request import Request
from chairlift.errors import ServerError
from chairlift.sampling_params import SamplingParams
from core.fake_runner import digests


def make_request(manager, request_id, token_ids, **kwargs):
    request = Request(request_id, token_ids, SamplingParams(**kwargs), seed=0)
    manager.extend_keys(request)
    return request


def compute(manager, request, num_tokens):
    """What the scheduler does for a share: grow, compute, register."""
    new_block_ids = manager.grow(request, num_tokens)
    before, request.num_computed_tokens = request.num_computed_tokens, num_tokens
    manager.register_filled(request, before)
    return new_block_ids


def run_through(manager, request):
    """Admit, compute every token, free; returns the number of cached tokens."""
    cached = manager.find_cached_prefix(request)
    manager.admit(request, cached)
    request.num_computed_tokens = len(cached) * manager.block_size
    compute(manager, request, request.num_tokens)
    manager.free(request)
    return len(cached) * manager.block_size


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_number_of_blocks_is_rounded_up(tokens, blocks):
    """A block that is just filled is one block, not two, and not none."""
    assert num_blocks_for(tokens, 16) == blocks


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 31, 32, 33, 48])
def test_never_all_of_a_prompt_is_cached(num_tokens):
    """With the whole prompt in the cache the last token is still computed (B10)."""
    manager = BlockManager(8, 16)
    tokens = list(range(num_tokens))
    assert run_through(manager, make_request(manager, "a", tokens)) == 0
    cached = run_through(manager, make_request(manager, "b", tokens))
    assert cached == (num_tokens - 1) // 16 * 16 < num_tokens


def test_blocks_are_shared_while_both_run():
    """Two requests with the same beginning refer to the same blocks, and the first may leave."""
    manager = BlockManager(8, 4)
    a = make_request(manager, "a", [1, 2, 3, 4, 5, 6])
    manager.admit(a, [])
    compute(manager, a, 6)
    b = make_request(manager, "b", [1, 2, 3, 4, 9, 9])
    cached = manager.find_cached_prefix(b)
    assert manager.num_blocks_taken(b, cached) == 1
    manager.admit(b, cached)
    assert manager.block_table(b) == manager.block_table(a)[:1]
    manager.free(a)
    manager.check_integrity()
    assert manager.pool.num_used == 1


def test_blocks_in_use_are_not_counted_as_available_twice():
    """Sharing a block that is only cached takes it out of the available ones."""
    manager = BlockManager(8, 4)
    run_through(manager, make_request(manager, "a", [1, 2, 3, 4, 5]))
    b = make_request(manager, "b", [1, 2, 3, 4, 9])
    assert manager.num_blocks_taken(b, manager.find_cached_prefix(b)) == 2


def test_the_tail_of_a_sequence_is_evicted_first():
    """After a sequence leaves, pressure takes its last full block and keeps its beginning findable."""
    manager = BlockManager(3, 4)
    tokens = list(range(12))
    run_through(manager, make_request(manager, "a", tokens))
    other = make_request(manager, "b", [99])
    manager.admit(other, [])
    manager.grow(other, 1)
    assert len(manager.find_cached_prefix(make_request(manager, "c", [*tokens, 0]))) == 2


def test_a_request_that_wants_prompt_logprobs_finds_nothing():
    """Its positions must all be computed, so the cache is not asked (B11)."""
    manager = BlockManager(4, 4)
    run_through(manager, make_request(manager, "a", [1, 2, 3, 4, 5]))
    assert manager.find_cached_prefix(make_request(manager, "b", [1, 2, 3, 4, 5], prompt_logprobs=0)) == []


def test_salted_requests_share_only_with_their_own_salt():
    """The salt enters every key."""
    manager = BlockManager(4, 4)
    for salt, found in (("a", 0), ("b", 0), ("a", 4)):
        request = Request(salt, [1, 2, 3, 4, 5], SamplingParams(), seed=0, cache_salt=salt)
        manager.extend_keys(request)
        assert run_through(manager, request) == found


def test_switched_off_nothing_is_keyed_or_counted():
    """Without prefix caching there are no keys, no cached blocks and no queries."""
    manager = BlockManager(4, 4, enable_prefix_caching=False)
    for request_id in "ab":
        request = make_request(manager, request_id, [1, 2, 3, 4, 5])
        assert run_through(manager, request) == 0
        assert request.block_keys == []
    assert manager.pool.num_free == 4
    assert manager.num_query_tokens == 0


def test_queries_and_hits_are_counted_for_first_admissions():
    """Counters tell what users reused; coming back from preemption does not count again."""
    manager = BlockManager(4, 4)
    run_through(manager, make_request(manager, "a", [1, 2, 3, 4, 5]))
    again = make_request(manager, "b", [1, 2, 3, 4, 5])
    run_through(manager, again)
    again.num_preemptions, again.num_computed_tokens = 1, 0
    run_through(manager, again)
    assert (manager.num_query_tokens, manager.num_hit_tokens) == (10, 4)


def test_check_integrity_notices_damage():
    """A reference that no table explains, and a block twice in a table, are reported."""
    manager = BlockManager(4, 4)
    request = make_request(manager, "a", [1] * 8)
    manager.admit(request, [])
    manager.grow(request, 8)
    manager.pool.acquire(manager.block_table(request)[0])
    with pytest.raises(ServerError, match="2 references, but is in 1 tables"):
        manager.check_integrity()
    manager._tables["a"].append(manager._tables["a"][0])
    with pytest.raises(ServerError, match="has a block twice"):
        manager.check_integrity()


class ManagerMachine(RuleBasedStateMachine):
    """Requests over a tiny alphabet come, grow, write, and go; every cached block must hold what its key says."""

    NUM_BLOCKS, BLOCK_SIZE = 8, 3

    def __init__(self):
        super().__init__()
        self.manager = BlockManager(self.NUM_BLOCKS, self.BLOCK_SIZE)
        self.requests = []
        self.kv = {}
        self.count = 0

    def slots(self, request, start, end):
        table, size = self.manager.block_table(request), self.BLOCK_SIZE
        return [(table[p // size], p % size) for p in range(start, end)]

    def compute(self, request, num_tokens):
        before, fitting = request.num_computed_tokens, self.manager.num_tokens_fitting(request)
        end = min(request.num_tokens, before + num_tokens, fitting)
        if end <= before:
            return
        self.manager.grow(request, end)
        for position, slot in enumerate(self.slots(request, before, end), start=before):
            self.kv[slot] = digests(request.token_ids)[position]
        request.num_computed_tokens = end
        self.manager.register_filled(request, before)

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=12), share=st.integers(1, 12))
    def admit(self, token_ids, share):
        request = make_request(self.manager, f"r{self.count}", token_ids)
        self.count += 1
        cached = self.manager.find_cached_prefix(request)
        assert len(cached) * self.BLOCK_SIZE < len(token_ids)
        if self.manager.num_blocks_taken(request, cached) > self.manager.pool.num_available:
            return
        self.manager.admit(request, cached)
        request.num_computed_tokens = len(cached) * self.BLOCK_SIZE
        self.requests.append(request)
        self.compute(request, share)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), num_tokens=st.integers(1, 5))
    def compute_more(self, data, num_tokens):
        self.compute(data.draw(st.sampled_from(self.requests)), num_tokens)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), token_id=st.integers(0, 1))
    def append(self, data, token_id):
        data.draw(st.sampled_from(self.requests)).token_ids.append(token_id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def free(self, data):
        request = data.draw(st.sampled_from(self.requests))
        self.requests.remove(request)
        self.manager.free(request)

    @invariant()
    def tables_hold_their_requests_tokens(self):
        self.manager.check_integrity()
        for request in self.requests:
            computed = request.num_computed_tokens
            stored = [self.kv[slot] for slot in self.slots(request, 0, computed)]
            assert stored == digests(request.token_ids)[:computed]

    def teardown(self):
        for request in self.requests:
            self.manager.free(request)
        assert self.manager.pool.num_available == self.NUM_BLOCKS


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
