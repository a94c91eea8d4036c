"""Text from tokens, one token at a time, without ever showing half a character.

The state is an incremental UTF-8 decoder, so a token costs the same however long the text already is.
"""

from __future__ import annotations

import codecs

from chairlift.tokenizer.base import Tokenizer


class IncrementalDetokenizer:
    """The text that tokens add to what came before them.

    Joined, `push` results plus `flush` equal `tokenizer.decode` of the same ids, but for a first space: `decode`
    may take it for the one that the tokenizer puts before a text (`strips_leading_space`), while here a text goes
    on, so it is kept.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is unfinished.

        Bytes become U+FFFD only when no later byte could make them valid.
        """
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished, else ""."""
        return self._decoder.decode(b"", final=True)
