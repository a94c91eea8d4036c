"""Request bodies: what the API accepts, with OpenAI's names and vLLM's extras. null means absent, always.

Types are strict (no "5" for 5) and checked by pydantic, but for lists, where it would collect a complaint per
item; `SamplingParams` checks those, and all ranges, and stops at the first. Fields that are not listed land in
`model_extra` and are judged by `unsupported.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, SkipValidation, ValidationError
from starlette.requests import Request

from chairlift.errors import InvalidParameterError, UnsupportedParameterError
from chairlift.sampling_params import MAX_LOGPROBS, SamplingParams

DEFAULT_MAX_TOKENS = 16  # of /v1/completions, as OpenAI has it


class Body(BaseModel):
    """Any request: the model's name, and what is not listed."""

    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)

    model: str | None = None


class StreamOptions(BaseModel):
    """What a stream contains beside the text."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(Body):
    """What both completion endpoints share."""

    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, SkipValidation] = None
    seed: int | None = None
    stop: Annotated[str | list[str] | None, SkipValidation] = None
    # vLLM's extras
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Annotated[list[int] | None, SkipValidation] = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None

    @property
    def include_usage(self) -> bool:
        """True when the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Raise for options that contradict the request or that we do not have."""
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidParameterError("stream_options needs stream: true", param="stream_options")
        if self.stream_options.continuous_usage_stats:
            raise UnsupportedParameterError(
                "stream_options.continuous_usage_stats is not supported; include_usage is",
                param="stream_options",
            )

    def sampling_params(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """What sampling gets; raises InvalidParameterError naming the field that is out of range."""
        _check_list("stop_token_ids", self.stop_token_ids)
        if not isinstance(self.stop, str):
            _check_list("stop", self.stop)
        given: dict[str, Any] = {
            name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None
        }
        return SamplingParams(
            **given,
            max_tokens=max_tokens,
            logit_bias=_logit_bias(self.logit_bias),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


_SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


class CompletionRequest(SamplingBody):
    """POST /v1/completions."""

    prompt: Any = None  # a text, token ids, or a list of either: see prompts.py
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


class ChatRequest(SamplingBody):
    """POST /v1/chat/completions."""

    messages: Any = None  # see tokenizer/messages.py
    max_tokens: int | None = None
    max_completion_tokens: int | None = None  # wins over max_tokens, its older name
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def num_top_logprobs(self) -> int | None:
        """How many alternatives to report per token; None = no logprobs."""
        top = self.top_logprobs
        if top is not None and not 0 <= top <= MAX_LOGPROBS:
            raise InvalidParameterError(
                f"top_logprobs is {top}, outside [0, {MAX_LOGPROBS}]", param="top_logprobs"
            )
        if not self.logprobs:
            if top:
                raise InvalidParameterError("top_logprobs needs logprobs: true", param="top_logprobs")
            return None
        return top or 0


class TokenizeRequest(Body):
    """POST /tokenize: a prompt or messages."""

    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    tokens: Annotated[list[int], SkipValidation]


BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Parse the body as `kind`, whatever its content type says.

    Raises:
        InvalidParameterError: it is not JSON, not an object, or a field has the wrong type.
    """
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise _as_parameter_error(error) from error


def _as_parameter_error(error: ValidationError) -> InvalidParameterError:
    """The first complaint, naming the field."""
    first = error.errors(include_url=False, include_context=False)[0]
    # Of a path only the field and positions in lists: the rest names pydantic's alternatives.
    where = ".".join(str(part) for i, part in enumerate(first["loc"]) if i == 0 or isinstance(part, int))
    if first["type"] == "json_invalid":
        return InvalidParameterError(
            f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json"
        )
    if not where:
        return InvalidParameterError("the body must be a JSON object", code="invalid_json")
    if first["type"] == "missing":
        return InvalidParameterError(f"{where} is missing", param=where)
    given = ascii(first["input"])
    shown = given if len(given) <= 100 else given[:100] + "..."
    return InvalidParameterError(f"{where} is {shown}: {first['msg']}", param=str(first["loc"][0]))


def _check_list(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, list):
        raise InvalidParameterError(f"{name} is not a list", param=name)


def _logit_bias(bias: Any) -> dict[int, float]:
    """JSON's keys are strings; `SamplingParams` checks the numbers."""
    if bias is None:
        return {}
    if not isinstance(bias, dict):
        raise InvalidParameterError("logit_bias must be an object: token id to bias", param="logit_bias")
    try:
        return {int(token_id): value for token_id, value in bias.items()}
    except ValueError as error:
        raise InvalidParameterError(
            f"logit_bias has a key that is no token id: {error}", param="logit_bias"
        ) from error
