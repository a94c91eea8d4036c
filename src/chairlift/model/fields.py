"""Typed reading of settings from a model's files, which anybody may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chairlift.errors import ModelLoadError


class Fields:
    """A mapping of untrusted values, read by type. A key set to None counts as absent.

    Every method raises ModelLoadError, naming the key, when the value has another type, or when the key is
    absent and `default` is not given.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix  # in front of every key, e.g. "llama."

    def has(self, key: str) -> bool:
        """True when the key is there and not None."""
        return self._values.get(self._prefix + key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; true and false are not."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, as a float."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One integer or a list of them; empty when the key is absent."""
        value = self._values.get(self._prefix + key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
            raise self._wrong(key, value, "an integer or a list of integers")
        return tuple(values)

    def refuse_unless(self, key: str, *allowed: Any) -> None:
        """Refuse a setting that is present and is none of `allowed`: we would compute something else."""
        value = self._values.get(self._prefix + key)
        if value is not None and value not in allowed:
            good = " or ".join(repr(item) for item in allowed) or "unset"
            raise ModelLoadError(
                f"{self._prefix}{key} is {_short(value)}, which is not supported (only {good} is)"
            )

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self._prefix}{key} is missing")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self._prefix}{key} is {_short(value)}, not {wanted}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
