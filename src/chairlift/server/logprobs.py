"""Logprobs in the shapes of the two OpenAI endpoints, and in vLLM's for prompts."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from chairlift.core.messages import TokenLogprobs
from chairlift.engine.outputs import named_logprobs
from chairlift.tokenizer.base import Tokenizer

LOWEST = -9999.0  # JSON has no -inf


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    content = [
        {
            **_chat_token(entry.token_id, entry.logprob, tokenizer),
            "top_logprobs": [
                _chat_token(token_id, logprob, tokenizer)
                for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, LOWEST),
        "bytes": list(data),
    }


class CompletionLogprobs:
    """`logprobs` of one text completion, in pieces; `text_offset` goes on from piece to piece.

    An offset is the number of characters of the choice's text before the token. Tokens that share a character
    share its offset, and tokens that are not printed have the offset of what follows them.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._strip_next = False  # only the prompt begins a text, a completion goes on

    def add_prompt(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], text: str
    ) -> dict[str, Any]:
        """The prompt's part (echo); `text` is how the prompt is shown."""
        hidden = self._hides_first(token_ids, text)
        self._strip_next = self._tokenizer.strips_leading_space
        piece = _empty()
        for position, (token_id, entry) in enumerate(zip(token_ids, entries, strict=True)):
            self._append(piece, token_id, entry, shown=not (hidden and position == 0))
        self._offset = len(text)
        self._decoder.reset()
        self._strip_next = False
        return piece

    def add(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The next tokens' part."""
        piece = _empty()
        for entry in entries:
            hidden = self._skip_special_tokens and self._tokenizer.is_special(entry.token_id)
            self._append(piece, entry.token_id, entry, shown=not hidden)
        return piece

    def _append(
        self, piece: dict[str, Any], token_id: int, entry: TokenLogprobs | None, *, shown: bool
    ) -> None:
        piece["tokens"].append(_completion_token(token_id, self._tokenizer))
        piece["text_offset"].append(self._offset)
        piece["token_logprobs"].append(None if entry is None else max(entry.logprob, LOWEST))
        piece["top_logprobs"].append(None if entry is None else _top(entry, self._tokenizer))
        if shown:
            data = self._tokenizer.token_bytes(token_id)
            if self._strip_next and data:
                self._strip_next = False
                data = data.removeprefix(b" ")
            self._offset += len(self._decoder.decode(data))

    def _hides_first(self, token_ids: Sequence[int], text: str) -> bool:
        """True when the prompt begins with a BOS that the text does not show."""
        first = token_ids[0]
        return first == self._tokenizer.bos_token_id and not text.startswith(
            self._tokenizer.token_text(first)
        )


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two pieces of completion logprobs as one."""
    return {key: first[key] + second[key] for key in first}


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None], tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: per prompt token, candidates by id."""
    return [None if entry is None else _by_id(entry, tokenizer) for entry in entries]


def _by_id(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        str(token_id): {
            "logprob": max(named.logprob, LOWEST),
            "rank": named.rank,
            "decoded_token": named.decoded_token,
        }
        for token_id, named in named_logprobs(entry, tokenizer).items()
    }


def _empty() -> dict[str, Any]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _top(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """The most likely tokens and the one taken, by text; of equal texts the most likely stands."""
    top: dict[str, float] = {}
    for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
        top.setdefault(_completion_token(token_id, tokenizer), max(logprob, LOWEST))
    top.setdefault(_completion_token(entry.token_id, tokenizer), max(entry.logprob, LOWEST))
    return top


def _completion_token(token_id: int, tokenizer: Tokenizer) -> str:
    r"""A token's text, or OpenAI's `bytes:\xf0\x9f` for one that is not whole characters."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
