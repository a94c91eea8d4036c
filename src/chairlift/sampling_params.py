"""What a user may ask of sampling. Names and meanings are those of vLLM's `SamplingParams` and OpenAI's API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.errors import InvalidParameterError
from chairlift.field_types import check_field_types

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024  # each is a write into the row of logits, step after step
GREEDY_TEMPERATURE = 1e-4  # at or below it, sampling is greedy (a smaller divisor only overflows)
_MAX_INT = 2**31 - 1

# Inclusive; None, where a field allows it, is in every range.
_RANGES: dict[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "max_tokens": (0, _MAX_INT),  # 0 makes sense with prompt_logprobs only; front ends decide
    "min_tokens": (0, _MAX_INT),
    "temperature": (0, 10**6),
    "top_p": (0, 1),
    "top_k": (-1, _MAX_INT),
    "min_p": (0, 1),
    "repetition_penalty": (0.001, 1000),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request. Every value is checked when the object is made.

    `max_tokens=None` means up to the model's context. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 are off;
    `top_p` 0 keeps the most likely token only. `logprobs=k` returns the k most likely tokens beside the
    chosen one; `prompt_logprobs=k` does so for each prompt token but the first.

    Raises:
        InvalidParameterError: a value is outside its range; the message gives value, range and field.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        check_field_types(self, _wrong_type)
        for name, (low, high) in _RANGES.items():
            _check_range(name, getattr(self, name), low, high)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}", param="min_tokens"
            )
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "stop_token_ids", _checked_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids outside `[0, vocab_size)`; raises InvalidParameterError naming the field."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise InvalidParameterError(
                        f"{name} has token id {token_id}, outside the vocabulary [0, {vocab_size})",
                        param=name,
                    )


def _wrong_type(name: str, value: object, wanted: str) -> InvalidParameterError:
    return InvalidParameterError(f"{name} is {value!r}, not {wanted}", param=name)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:  # not a number is in no range
        raise InvalidParameterError(f"{name} is {value}, outside [{low}, {high}]", param=name)


def _check_count(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidParameterError(f"{name} has {count} entries, more than {limit}", param=name)


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    """The items of a list, tuple, set or the like; None is empty."""
    if value is None:
        return ()
    if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping)):
        raise _wrong_type(name, value, "a list")
    return tuple(value)


def _checked_stop(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else _listed("stop", stop)
    _check_count("stop", len(strings), MAX_STOP_STRINGS)
    for text in strings:
        if not isinstance(text, str) or not text:
            raise InvalidParameterError(
                f"stop has {text!r}; only non-empty strings are allowed", param="stop"
            )
    return strings


def _checked_ids(ids: Any) -> tuple[int, ...]:
    listed = _listed("stop_token_ids", ids)
    _check_count("stop_token_ids", len(listed), MAX_STOP_TOKEN_IDS)
    return tuple(_token_id("stop_token_ids", token_id) for token_id in listed)


def _checked_bias(bias: Any) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise _wrong_type("logit_bias", bias, "a mapping of token ids to numbers")
    _check_count("logit_bias", len(bias), MAX_LOGIT_BIASES)
    checked: dict[int, float] = {}
    for token_id, value in bias.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidParameterError(f"logit_bias has {value!r}, not a number", param="logit_bias")
        _check_range("logit_bias", value, -100, 100)
        checked[_token_id("logit_bias", token_id)] = float(value)
    return checked


def _token_id(name: str, token_id: Any) -> int:
    if isinstance(token_id, bool) or not isinstance(token_id, int):
        raise InvalidParameterError(f"{name} has {token_id!r}, not a token id", param=name)
    _check_range(name, token_id, 0, _MAX_INT)
    return token_id
