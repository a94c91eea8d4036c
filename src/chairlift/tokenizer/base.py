"""What the rest of Chairlift expects of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to ids and back, ids equal to Hugging Face's for the same model."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Id written before a prompt when the model asks for it."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn: the file's eos, the tokenizer's, the template's turn-end token."""
        ...

    @property
    def strips_leading_space(self) -> bool:
        """True when decoding drops one leading space (SentencePiece with a space prefix)."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. With add_special_tokens a BOS is added if the model wants one and the text has none."""
        ...

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of each text, at the price of one call; other threads run meanwhile."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD, spaces are never cleaned up."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for (special tokens: their text).

        b"" for an id beyond the vocabulary: models round theirs up, and may sample it.
        """
        ...

    def token_text(self, token_id: int) -> str:
        """`token_bytes` for people: decoded with U+FFFD for broken parts."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which are not printed."""
        ...

    def special_token_id(self, text: str) -> int | None:
        """Id of the control token with exactly this text, else None."""
        ...
