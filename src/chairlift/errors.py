"""The tree of errors. The class decides who is at fault, hence the HTTP status and the exit code.

    ChairliftError
    ├── RequestError              the client's request is wrong                       400
    │   ├── InvalidParameterError     a field has a bad type or value                 400
    │   ├── UnsupportedParameterError a field we know and do not implement            400
    │   ├── ContextLengthError        prompt + max_tokens exceed max_model_len        400
    │   ├── PoolTooSmallError         the request can never fit in the KV pool        400
    │   ├── AuthenticationError       missing or wrong API key                        401
    │   └── NotFoundError             unknown model, request or route                 404
    ├── ServerError               the server cannot answer now                        500
    │   ├── OverloadedError           the queue is full; try again                    429
    │   └── EngineDeadError           the engine process is gone or stuck             503
    ├── ConfigError               a flag or setting is wrong                          exit 2
    └── ModelLoadError            a model file is missing, damaged or not supported   exit 3

Messages give the value, the limit and the knob that changes it.
"""

from __future__ import annotations


class ChairliftError(Exception):
    """Base of every error raised on purpose by Chairlift."""

    exit_code = 1


class RequestError(ChairliftError):
    """The request is at fault; answered with a 4xx and never retried."""

    http_status = 400
    error_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidParameterError(RequestError):
    """A field has a wrong type or a value outside its range; `param` names it."""


class UnsupportedParameterError(RequestError):
    """A field that is known but not implemented, set to something other than its no-op value."""


class ContextLengthError(RequestError):
    """The prompt, or prompt + max_tokens, is longer than `max_model_len`."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class PoolTooSmallError(RequestError):
    """The request needs more KV blocks than the whole pool has, so it could never run."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="kv_cache_too_small")


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    http_status = 401
    error_type = "authentication_error"


class NotFoundError(RequestError):
    """No such model, request or route."""

    http_status = 404
    error_type = "not_found_error"


class ServerError(ChairliftError):
    """The server is at fault; answered with a 5xx (or 429) and safe to retry."""

    http_status = 500
    error_type = "server_error"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class OverloadedError(ServerError):
    """The waiting queue is full."""

    http_status = 429
    error_type = "overloaded_error"


class EngineDeadError(ServerError):
    """The engine process died or stopped answering and could not be brought back."""

    http_status = 503
    error_type = "engine_dead_error"


class ConfigError(ChairliftError):
    """A flag or a setting is wrong, or two of them contradict each other."""

    exit_code = 2


class ModelLoadError(ChairliftError):
    """A model file is missing, damaged, hostile or of a kind that is not supported."""

    exit_code = 3
