from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.block_hash import KEY_BYTES, block_key, extend_block_keys, root_key

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def keys_of(token_ids, block_size=4, salt=""):
    keys = []
    extend_block_keys(keys, token_ids, block_size, salt)
    return keys


@given(TOKENS, st.integers(1, 8))
def test_only_full_blocks_have_keys(token_ids, block_size):
    """A sequence has one key for each full block and none for the partial last one."""
    assert len(keys_of(token_ids, block_size)) == len(token_ids) // block_size


@given(TOKENS, st.integers(0, 40), st.integers(1, 8))
def test_extending_equals_computing_at_once(token_ids, cut, block_size):
    """Keys extended as blocks fill are those of the whole sequence."""
    keys = keys_of(token_ids[:cut], block_size)
    extend_block_keys(keys, token_ids, block_size, "")
    assert keys == keys_of(token_ids, block_size)


@given(TOKENS, TOKENS)
def test_keys_agree_exactly_as_far_as_tokens_do(a, b):
    """Two sequences have the same key for a block if and only if all tokens up to its end are the same."""
    for i, (key_a, key_b) in enumerate(zip(keys_of(a), keys_of(b), strict=False), start=1):
        assert (key_a == key_b) == (a[: 4 * i] == b[: 4 * i])


def test_a_key_depends_on_everything_before_its_block():
    """The same tokens after another beginning have another key."""
    assert keys_of([1, 2, 3, 4, 5, 6, 7, 8])[1] != keys_of([9, 2, 3, 4, 5, 6, 7, 8])[1]


def test_salts_keep_sequences_apart():
    """The same tokens under different salts share no key, nor do parts that only concatenate to the same."""
    assert not set(keys_of(list(range(8)), salt="a")) & set(keys_of(list(range(8)), salt="b"))
    assert root_key("ab", "") != root_key("a", "b")


def test_a_key_is_wide_enough_not_to_collide():
    """Keys have 256 bits, and token ids are packed whole, not modulo something."""
    assert len(block_key(root_key(), [1])) == KEY_BYTES == 32
    assert block_key(root_key(), [1]) != block_key(root_key(), [1 + 2**32])
