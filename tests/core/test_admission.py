import pytest

from chairlift.core.admission import AdmissionLimits
from chairlift.errors import ContextLengthError, InvalidParameterError, PoolTooSmallError

BIG = AdmissionLimits(max_model_len=8192, num_blocks=10_000, block_size=16)
TINY = AdmissionLimits(max_model_len=1024, num_blocks=16, block_size=16)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "total"),
    [(8191, 1, 8192), (1, 8191, 8192), (100, 0, 100), (100, None, 8192), (8191, None, 8192)],
)
def test_what_fits_the_context_is_accepted(num_prompt, max_tokens, total):
    """The limit itself is allowed, and no max_tokens means up to the context."""
    assert BIG.max_total_tokens(num_prompt, max_tokens) == total


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(9000, 1), (8192, 1), (8192, 0), (8192, None)])
def test_a_prompt_that_fills_the_context_is_refused(num_prompt, max_tokens):
    """Both numbers and the flag are in the message."""
    with pytest.raises(
        ContextLengthError, match=rf"{num_prompt} tokens.*8192 tokens \(--max-model-len\)"
    ) as e:
        BIG.max_total_tokens(num_prompt, max_tokens)
    assert e.value.code == "context_length_exceeded"


def test_an_explicit_max_tokens_beyond_the_context_is_refused():
    """It is not clamped: the message gives prompt, max_tokens, their sum and the limit."""
    with pytest.raises(ContextLengthError, match=r"8000 tokens and max_tokens is 1000, together 9000.*8192"):
        BIG.max_total_tokens(8000, 1000)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(249, 8), (241, 8), (240, 17), (256, 1), (256, 0)])
def test_what_just_fits_the_pool_is_accepted(num_prompt, max_tokens):
    """16 blocks of 16 hold 256 tokens of KV, and the last sampled token needs none (B01)."""
    assert TINY.max_total_tokens(num_prompt, max_tokens) == num_prompt + max_tokens


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(400, 8), (256, 8), (250, 8), (257, 0), (257, None)])
def test_what_can_never_fit_the_pool_is_refused(num_prompt, max_tokens):
    """The message gives the blocks needed, the blocks there are, and the flag (B01)."""
    with pytest.raises(PoolTooSmallError, match=r"need \d+ KV blocks.*the pool has 16 \(--kv-cache-memory\)"):
        TINY.max_total_tokens(num_prompt, max_tokens)


def test_no_max_tokens_is_bounded_by_the_pool():
    """A request that says nothing about its length is not refused because the context is larger than the pool."""
    assert TINY.max_total_tokens(10, None) == 257


def test_an_empty_prompt_is_refused():
    """There is no token whose logits could be sampled."""
    with pytest.raises(InvalidParameterError, match="no tokens") as e:
        BIG.max_total_tokens(0, 4)
    assert e.value.param == "prompt"
