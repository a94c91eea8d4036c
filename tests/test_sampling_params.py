"""Sampling parameters: the edges of every range (case B28 and its kind)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chairlift.errors import InvalidParameterError
from chairlift.sampling_params import SamplingParams

REFUSED: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 1e9),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("top_p", -1),
    ("top_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("presence_penalty", 3),
    ("frequency_penalty", -2.5),
    ("n", 0),
    ("n", -1),
    ("n", 1_000_000),
    ("max_tokens", -1),
    ("max_tokens", 2**31),
    ("min_tokens", -1),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
    ("seed", 2**70),
    ("logit_bias", {5: 1000}),
    ("logit_bias", {-1: 5}),
    ("logit_bias", {5: "x"}),
    ("stop_token_ids", [-1]),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", 5),
    ("stop", {"a": 1}),
    ("stop_token_ids", 5),
    ("stop_token_ids", "7"),
    ("stop_token_ids", [True]),
    ("logit_bias", [1]),
    ("logit_bias", {True: 1}),
    ("logit_bias", {5: True}),
    ("max_tokens", "3"),
    ("seed", "x"),
    ("n", None),
    ("ignore_eos", "x"),
    ("detokenize", "x"),
    ("skip_special_tokens", 3),
    ("include_stop_str_in_output", "x"),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_out_of_range_names_the_field(field: str, value: Any) -> None:
    """A wrong value is refused when the object is made, and the error says which field it was."""
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("field", "limit"), [("stop", 64), ("stop_token_ids", 1024), ("logit_bias", 1024)], ids=str
)
def test_how_many_entries(field: str, limit: int) -> None:
    """As many entries as the limit are fine; one more is refused with its count and the limit."""

    def given(count: int) -> Any:
        if field == "logit_bias":
            return dict.fromkeys(range(count), 1.0)
        return [str(i) if field == "stop" else i for i in range(count)]

    assert len(getattr(SamplingParams(**{field: given(limit)}), field)) == limit
    with pytest.raises(InvalidParameterError, match=f"{field} has {limit + 1} .*more than {limit}") as caught:
        SamplingParams(**{field: given(limit + 1)})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0),
        ("top_p", 1),
        ("top_k", -1),
        ("top_k", 10**9),
        ("min_p", 1),
        ("max_tokens", None),
        ("seed", -1),
    ],
)
def test_legal_edges_are_accepted(field: str, value: Any) -> None:
    """Values at the edge that mean something are not refused."""
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 1e-12}, {"temperature": 1e-4}, {"top_k": 1}]
)
def test_what_counts_as_greedy(params: dict[str, Any]) -> None:
    """Temperature 0, a temperature too small to divide by, and top_k 1 all take the most likely token (B27)."""
    assert SamplingParams(**params).is_greedy


def test_one_stop_string_may_be_given_bare() -> None:
    """`stop="x"` and `stop=["x"]` are the same, as in OpenAI's API."""
    assert SamplingParams(stop="x") == SamplingParams(stop=["x"])


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_ids_outside_the_vocabulary_name_the_field(field: str) -> None:
    """The vocabulary's size is known only to the model, so it has its own check (B34)."""
    params = SamplingParams(**{field: {49152: 5.0} if field == "logit_bias" else [49152]})
    with pytest.raises(InvalidParameterError, match="49152") as caught:
        params.check_vocabulary(49152)
    assert caught.value.param == field
    params.check_vocabulary(49153)
