"""What a user may ask of sampling. Names and meanings are those of vLLM's `SamplingParams` and OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.errors import InvalidParameterError

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
GREEDY_TEMPERATURE = 1e-4  # at or below it, sampling is greedy (a smaller divisor only overflows)


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
        _check_int("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            # 0 is legal only together with echo: the server and `max_tokens=0` of LLM say so themselves.
            _check_int("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}", param="min_tokens"
            )
        _check_float("temperature", self.temperature, 0.0, 1e6)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1, 2**31 - 1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**64 - 1)
        _check_optional_count("logprobs", self.logprobs)
        _check_optional_count("prompt_logprobs", self.prompt_logprobs)
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


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameterError(f"{name} is {value!r}, not an integer", param=name)
    if not low <= value <= high:
        raise InvalidParameterError(f"{name} is {value}, outside [{low}, {high}]", param=name)


def _check_float(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameterError(f"{name} is {value!r}, not a number", param=name)
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidParameterError(f"{name} is {value}, outside [{low:g}, {high:g}]", param=name)


def _check_optional_count(name: str, value: Any) -> None:
    if value is not None:
        _check_int(name, value, 0, MAX_LOGPROBS)


def _checked_stop(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidParameterError(
            f"stop has {len(strings)} strings, more than {MAX_STOP_STRINGS}", param="stop"
        )
    for text in strings:
        if not isinstance(text, str) or not text:
            raise InvalidParameterError(
                f"stop has {text!r}; only non-empty strings are allowed", param="stop"
            )
    return strings


def _checked_ids(ids: Any) -> tuple[int, ...]:
    token_ids = tuple(ids or ())
    for token_id in token_ids:
        _check_int("stop_token_ids", token_id, 0, 2**31 - 1)
    return token_ids


def _checked_bias(bias: Any) -> dict[int, float]:
    checked: dict[int, float] = {}
    for token_id, value in dict(bias or {}).items():
        _check_int("logit_bias", token_id, 0, 2**31 - 1)
        _check_float("logit_bias", value, -100.0, 100.0)
        checked[token_id] = float(value)
    return checked
