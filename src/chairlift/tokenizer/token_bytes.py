"""The exact bytes behind a vocabulary's pieces, for the two ways in which vocabularies spell bytes."""

from __future__ import annotations

import re
from functools import lru_cache

BYTE_LEVEL = "byte-level"  # each character of a piece is one byte, in GPT-2's printable alphabet
BYTE_FALLBACK = "byte-fallback"  # a piece is text with U+2581 for a space, or <0xAB> for one byte

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are themselves, other bytes are U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


def piece_bytes(piece: str, scheme: str, *, is_added: bool) -> bytes:
    """Bytes of a piece that is not a control token.

    Added tokens are literal text in a byte-level vocabulary, and so is a piece outside its alphabet.
    """
    if scheme == BYTE_FALLBACK:
        match = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.replace("\u2581", " ").encode()
    alphabet = byte_alphabet()
    if is_added or not all(char in alphabet for char in piece):
        return piece.encode()
    return bytes(alphabet[char] for char in piece)
