"""Tokenizers built from recorded vocabularies, and what their oracles said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chairlift.tokenizer.gguf import from_gguf_metadata
from chairlift.tokenizer.tokenizer import HFTokenizer

DATA = Path(__file__).parent.parent / "data"


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return document


def smollm_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a SmolLM2 tokenizer with only the tokens that the goldens use; keys of `changes` lose
    their prefix `tokenizer.ggml.`, None deletes."""
    return _changed(load("tokenizer_goldens.json")["subset_metadata"], changes)


def spm_metadata(**changes: Any) -> dict[str, Any]:
    return _changed(load("spm_goldens.json")["metadata"], changes)


def smollm() -> HFTokenizer:
    return from_gguf_metadata(smollm_metadata())


def spm() -> HFTokenizer:
    return from_gguf_metadata(spm_metadata())


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}
