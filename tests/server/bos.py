"""A byte tokenizer that begins texts with a BOS."""

from __future__ import annotations

from fakes import ByteTokenizer


class BosTokenizer(ByteTokenizer):
    bos_token_id = 257

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = super().encode(text)
        return [257, *ids] if add_special_tokens and ids[:1] != [257] else ids
