import pytest

from chairlift.core.messages import TokenLogprobs
from chairlift.core.request import Request
from chairlift.sampling_params import SamplingParams


def make(prompt=(5, 6, 7), output=(), max_total=10, **params):
    request = Request(
        "r", prompt, SamplingParams(**params), seed=1, eos_token_ids=(2,), output_token_ids=output
    )
    request.max_total_tokens = max_total
    return request


def feed(request, *token_ids):
    for token_id in token_ids:
        request.append_token(token_id)
    return request.finish_reason, request.stop_reason


@pytest.mark.parametrize(
    ("params", "tokens", "expected"),
    [
        ({}, [9, 2], ("stop", None)),
        ({"ignore_eos": True}, [9, 2], (None, None)),
        ({"stop_token_ids": [9]}, [9], ("stop", 9)),
        ({"stop_token_ids": [2]}, [2], ("stop", None)),
        ({"ignore_eos": True, "stop_token_ids": [2]}, [2], ("stop", 2)),
        ({"min_tokens": 2}, [2, 2], (None, None)),
        ({"min_tokens": 2}, [9, 9, 2], ("stop", None)),
        ({}, [9] * 7, ("length", None)),
        ({}, [9] * 6 + [2], ("stop", None)),
    ],
)
def test_how_a_request_ends(params, tokens, expected):
    """EOS, stop ids, min_tokens and the length limit; a stop at the limit is a stop."""
    assert feed(make(**params), *tokens) == expected


def test_resumed_output_counts():
    """Output from before a crash counts for min_tokens and for the length limit."""
    assert feed(make(output=[8, 8], min_tokens=2), 2) == ("stop", None)
    assert feed(make(output=[8] * 6), 8) == ("length", None)
    request = make(output=[8, 9])
    assert (request.num_tokens, request.num_prompt_tokens, request.output_token_ids) == (5, 3, [8, 9])


def test_drafts_never_reach_beyond_the_limit():
    """A draft is dropped when it and the token after it could not both be kept."""
    request = make(max_total=6)
    assert request.acceptable([1, 2, 3, 4]) == (1, 2)
    feed(request, 8, 8)
    assert request.acceptable([1]) == ()


def entries(start, end):
    return [TokenLogprobs(i, -1.0, 1) for i in range(start, end)]


def test_prompt_logprobs_are_collected_once_over_recomputed_chunks():
    """Chunks that come twice after a preemption add nothing twice; the whole is handed out once."""
    request = make(prompt=list(range(10)), prompt_logprobs=0, max_total=20)
    request.collect_prompt_logprobs(0, entries(0, 4))
    request.num_computed_tokens = 4
    assert request.take_prompt_logprobs() is None
    request.collect_prompt_logprobs(0, entries(0, 3))
    request.collect_prompt_logprobs(3, entries(3, 9))
    request.num_computed_tokens = 10
    assert request.take_prompt_logprobs() == entries(0, 9)
    request.collect_prompt_logprobs(0, entries(0, 9))
    assert request.take_prompt_logprobs() is None


@pytest.mark.parametrize("kwargs", [{}, {"prompt_logprobs": 0, "output": [9]}])
def test_prompt_logprobs_not_asked_or_given_before_a_crash(kwargs):
    """Without being asked, or on resuming after the first token, there is nothing to collect."""
    assert make(**kwargs).prompt_logprobs is None


def test_repr_says_where_it_stands():
    """A request prints as its id, status and counters."""
    assert repr(make(output=[9])) == "Request('r', waiting, 3 prompt + 1 output tokens, 0 computed)"
