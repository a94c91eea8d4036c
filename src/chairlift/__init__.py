"""Chairlift: continuous batching for LLMs. Public names load on first use, so importing costs almost nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift.llm import LLM as LLM
    from chairlift.sampling_params import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

_WHERE = {"LLM": "chairlift.llm", "SamplingParams": "chairlift.sampling_params"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'chairlift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
