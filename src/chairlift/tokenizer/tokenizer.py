"""`HFTokenizer`: the `tokenizers` library behind Chairlift's `Tokenizer` protocol.

Ids are the library's. Text is ours: a token stands for exact bytes and `decode` joins them, so decoding
all at once and decoding token by token (`detokenizer.py`) cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from chairlift.errors import InvalidParameterError, ModelLoadError
from chairlift.tokenizer.token_bytes import BYTE_FALLBACK, BYTE_LEVEL, piece_bytes

# Control tokens that end a turn. One counts as an end of sequence when the chat template writes it.
TURN_END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eom_id|>",
    "</s>",
)


class HFTokenizer:
    """A tokenizer whose ids equal Hugging Face's; satisfies `chairlift.tokenizer.base.Tokenizer`.

    `scheme` says what the vocabulary's pieces are made of: BYTE_LEVEL (GPT-2's printable alphabet) or
    BYTE_FALLBACK (SentencePiece: U+2581 for a space, `<0xAB>` for a byte).
    """

    def __init__(
        self,
        backend: Backend,
        *,
        scheme: str,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        strips_leading_space: bool = False,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._scheme = scheme
        self._bos_token_id = bos_token_id
        self._eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self._strips_leading_space = strips_leading_space
        self._added = {i: str(token.content) for i, token in backend.get_added_tokens_decoder().items()}
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._special_ids = {self._added[i]: i for i in self._special}
        self._vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self._bytes: dict[int, bytes] = {}  # filled as tokens are met

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        config: Mapping[str, Any] | None = None,
        *,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> HFTokenizer:
        """Read a `tokenizer.json`.

        Args:
            path: the file.
            config: contents of `tokenizer_config.json`: bos_token, eos_token, add_bos_token.
            eos_token_ids: ids that `config.json` and `generation_config.json` call end of sequence.
            chat_template: its turn-end token ends a sequence too.

        Raises:
            ModelLoadError: the file is missing, damaged or of a kind whose bytes we cannot give back.
        """
        text, document = _read_json(Path(path))
        scheme, strips = _scheme_of(document.get("decoder"), str(path))
        try:
            backend = Backend.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{path} is not a tokenizer that can be used: {error}") from error
        names = {key: _token_text((config or {}).get(key)) for key in ("bos_token", "eos_token")}
        bos = _id_of(backend, names["bos_token"])
        eos = _id_of(backend, names["eos_token"])
        _apply_llama_flags(backend, config or {}, names, bos, eos)
        return cls(
            backend,
            scheme=scheme,
            bos_token_id=bos,
            eos_token_ids=[
                *eos_token_ids,
                *([] if eos is None else [eos]),
                *turn_end_ids(backend, chat_template),
            ],
            strips_leading_space=strips,
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a text, whether or not this model asks for it."""
        return self._bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn."""
        return self._eos_token_ids

    @property
    def strips_leading_space(self) -> bool:
        """True when decoding drops one leading space, the one that encoding put there."""
        return self._strips_leading_space

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. A BOS that the model asks for is added unless the text begins with one.

        Raises:
            InvalidParameterError: the text holds half a surrogate pair, which is no character.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of each text, in one call; raises like it."""
        try:
            # The batch call lets other threads run; `encode` holds the interpreter's lock, for seconds if long.
            batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidParameterError(
                "the text holds half of a surrogate pair, which is no character"
            ) from error
        ids: list[list[int]] = [encoding.ids for encoding in batch]
        bos = self._bos_token_id
        if not add_special_tokens or bos is None:
            return ids
        # One BOS if the text brought its own; more than that was typed on purpose.
        return [each[1:] if each[:2] == [bos, bos] else each for each in ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD, spaces are never cleaned up."""
        kept = (i for i in ids if not (skip_special_tokens and i in self._special))
        data = b"".join(map(self.token_bytes, kept))
        if self._strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for (special tokens: their text); b"" for an id without a piece."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._make_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """`token_bytes` for people: decoded with U+FFFD for broken parts."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which are not printed."""
        return token_id in self._special

    def special_token_id(self, text: str) -> int | None:
        """Id of the control token with exactly this text, else None."""
        return self._special_ids.get(text)

    def _make_bytes(self, token_id: int) -> bytes:
        if token_id in self._special:
            return self._added[token_id].encode()
        if token_id < 0:
            raise InvalidParameterError(f"token id {token_id} is negative")
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        return piece_bytes(piece, self._scheme, is_added=token_id in self._added)


def add_bos_eos(backend: Backend, *, bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> None:
    """Make `encode(add_special_tokens=True)` write these (text, id) tokens around a text."""
    pieces = [f"{bos[0]}:0"] if bos else []
    pieces += ["$A:0"]
    pieces += [f"{eos[0]}:0"] if eos else []
    backend.post_processor = TemplateProcessing(
        single=pieces,
        special_tokens=[token for token in dict.fromkeys((bos, eos)) if token],
    )


def turn_end_ids(backend: Backend, chat_template: str | None) -> list[int]:
    """Ids of the turn-end tokens that a chat template writes."""
    found = (_id_of(backend, text) for text in TURN_END_TOKENS if text in (chat_template or ""))
    return [token_id for token_id in found if token_id is not None]


def _read_json(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
    except OSError as error:
        raise ModelLoadError(f"cannot read the tokenizer {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise ModelLoadError(f'{path} is not a tokenizer.json: it has no "model"')
    return text, document


def _scheme_of(decoder: Any, path: str) -> tuple[str, bool]:
    """(scheme, strips_leading_space) from the decoder's description."""
    parts = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {part.get("type"): part for part in parts if isinstance(part, dict)}
    if "ByteLevel" in kinds:
        return BYTE_LEVEL, False
    if "ByteFallback" in kinds:
        return BYTE_FALLBACK, kinds.get("Strip", {}).get("start", 0) > 0
    raise ModelLoadError(
        f"{path} has the decoder {sorted(map(str, kinds)) or None}; "
        "supported are ByteLevel (GPT-2 family) and ByteFallback (SentencePiece BPE)"
    )


def _apply_llama_flags(
    backend: Backend,
    config: Mapping[str, Any],
    names: Mapping[str, str | None],
    bos: int | None,
    eos: int | None,
) -> None:
    """Honour add_bos_token and add_eos_token where Hugging Face does: in the Llama tokenizer classes."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    if "LlamaTokenizer" not in str(config.get("tokenizer_class")):
        return
    wants_bos, wants_eos = config.get("add_bos_token", True), config.get("add_eos_token", False)
    add_bos_eos(
        backend,
        bos=(str(names["bos_token"]), bos) if wants_bos and bos is not None else None,
        eos=(str(names["eos_token"]), eos) if wants_eos and eos is not None else None,
    )


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json is a string or {"content": string, ...}."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _id_of(backend: Backend, text: str | None) -> int | None:
    token_id = None if text is None else backend.token_to_id(text)
    return None if token_id is None else int(token_id)
