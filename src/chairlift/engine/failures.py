"""Errors that cross the process border: class name and message there, the same exception here."""

from __future__ import annotations

import inspect

from chairlift import errors
from chairlift.errors import ChairliftError, ServerError


def error_named(class_name: str, message: str) -> ChairliftError:
    """The error of `chairlift.errors` with this class name; ServerError when there is none."""
    kind = getattr(errors, class_name, None)
    if inspect.isclass(kind) and issubclass(kind, ChairliftError):
        return kind(message)
    return ServerError(f"{class_name}: {message}" if class_name else message)
