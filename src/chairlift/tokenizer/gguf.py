"""A tokenizer rebuilt from the metadata of a GGUF file, splitting text exactly as the original does.

A GGUF file holds the vocabulary but only the *name* of the rule that splits text before merging
(`tokenizer.ggml.pre`). Each rule here is the original model's; an unknown name is refused, since a near
miss gives plausible and wrong ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from chairlift.errors import ModelLoadError
from chairlift.tokenizer.token_bytes import BYTE_FALLBACK, BYTE_LEVEL
from chairlift.tokenizer.tokenizer import HFTokenizer, add_bos_eos, turn_end_ids

logger = logging.getLogger(__name__)

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
}
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def from_gguf_metadata(metadata: Mapping[str, Any]) -> HFTokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
        metadata: the file's key-value pairs; strings are `str`, arrays are sequences.

    Raises:
        ModelLoadError: the kind of tokenizer or its split rule is not supported, or the vocabulary is
            damaged; the message names the key.
    """
    vocabulary = _Vocabulary(metadata)
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            backend, pre = _byte_level_backend(metadata, vocabulary)
        elif kind == "llama":
            backend, pre = _sentencepiece_backend(metadata, vocabulary), "spm"
        else:
            raise ModelLoadError(f'tokenizer.ggml.model is {kind!r}; supported are "gpt2" and "llama"')
        backend.add_special_tokens(vocabulary.added((UNKNOWN, CONTROL), special=True))
        backend.add_tokens(vocabulary.added((USER_DEFINED,), special=False))
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exception, with the piece it could not find
        raise ModelLoadError(f"the tokenizer in the GGUF file is damaged: {error}") from error
    return _finish(metadata, backend, vocabulary, pre)


class _Vocabulary:
    """tokens, their types and scores, checked against each other."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.tokens = _array(metadata, "tokenizer.ggml.tokens", str)
        if not self.tokens:
            raise ModelLoadError("tokenizer.ggml.tokens is missing or empty")
        self.types = _array(metadata, "tokenizer.ggml.token_type", int) or [1] * len(self.tokens)
        self.scores = _array(metadata, "tokenizer.ggml.scores", float)
        for name, values in (("token_type", self.types), ("scores", self.scores)):
            if values and len(values) != len(self.tokens):
                raise ModelLoadError(
                    f"tokenizer.ggml.{name} has {len(values)} entries for {len(self.tokens)} tokens"
                )
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise ModelLoadError("tokenizer.ggml.tokens holds the same token twice")

    def added(self, types: tuple[int, ...], *, special: bool) -> list[AddedToken]:
        """Tokens of these types, found in text as they stand and never split."""
        return [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in types and token
        ]

    def named(self, metadata: Mapping[str, Any], name: str) -> tuple[str, int] | None:
        """(text, id) of the token that `tokenizer.ggml.<name>_token_id` points at."""
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is None:
            return None
        if not 0 <= int(token_id) < len(self.tokens):
            raise ModelLoadError(
                f"tokenizer.ggml.{name}_token_id is {token_id}, outside the vocabulary [0, {len(self.tokens)})"
            )
        return self.tokens[int(token_id)], int(token_id)


def _byte_level_backend(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Backend, str]:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ModelLoadError(
            f"tokenizer.ggml.pre is {pre!r}, a way to split text that is not supported; "
            f"supported: {', '.join(sorted(PRE_TOKENIZERS))}. --tokenizer can name a tokenizer.json instead"
        )
    if pre == "default":
        logger.warning("the GGUF file does not say how its tokenizer splits text; GPT-2's rule is used")
    merges = [tuple(merge.split(" ", 1)) for merge in _array(metadata, "tokenizer.ggml.merges", str)]
    if not all(len(merge) == 2 for merge in merges):
        raise ModelLoadError("tokenizer.ggml.merges has an entry that is not two pieces")
    backend = Backend(BPE(vocabulary.ids, merges, ignore_merges=pre in LLAMA3_NAMES))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend, pre


def _sentencepiece_backend(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Backend:
    if not vocabulary.scores:
        raise ModelLoadError("tokenizer.ggml.scores is missing; a SentencePiece vocabulary needs it")
    unknown = vocabulary.named(metadata, "unknown")
    backend = Backend(
        BPE(
            vocabulary.ids,
            _merges_from_scores(vocabulary),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", "\u2581")]
    if _flag(metadata, "add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE model, best score first.

    SentencePiece joins the adjacent pair whose joined piece scores best. Every way to cut a piece into two
    other pieces is such a pair; those of one piece are ordered by the ids of the halves.
    """
    normal = [index for index, kind in enumerate(vocabulary.types) if kind == NORMAL]
    ids = {vocabulary.tokens[index]: index for index in normal}
    found: list[tuple[float, int, int, str, str]] = []
    for index in normal:
        piece, score = vocabulary.tokens[index], vocabulary.scores[index]
        cuts = [
            (ids[left], ids[right], left, right)
            for left, right in ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            if left in ids and right in ids
        ]
        found += [(score, len(left), len(right), left, right) for _, _, left, right in sorted(cuts)]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in found]


def _finish(metadata: Mapping[str, Any], backend: Backend, vocabulary: _Vocabulary, pre: str) -> HFTokenizer:
    """BOS, EOS and the other ends of a turn."""
    bos, eos = vocabulary.named(metadata, "bos"), vocabulary.named(metadata, "eos")
    add_bos = _flag(metadata, "add_bos_token", pre == "spm" or pre in LLAMA3_NAMES)
    add_eos = _flag(metadata, "add_eos_token", False)
    if (add_bos and bos) or (add_eos and eos):
        add_bos_eos(backend, bos=bos if add_bos else None, eos=eos if add_eos else None)
    ends = [vocabulary.named(metadata, name) for name in ("eos", "eot", "eom")]
    return HFTokenizer(
        backend,
        scheme=BYTE_FALLBACK if pre == "spm" else BYTE_LEVEL,
        bos_token_id=bos[1] if bos else None,
        eos_token_ids=[
            *(token[1] for token in ends if token),
            *turn_end_ids(backend, metadata.get("tokenizer.chat_template")),
        ],
        strips_leading_space=pre == "spm" and _flag(metadata, "add_space_prefix", True),
    )


def _array(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    values = list(metadata.get(key, ()))
    if values and not isinstance(values[0], kind):
        values = [kind(value) for value in values] if kind is not str else _refuse(key)
    return values


def _refuse(key: str) -> list[Any]:
    raise ModelLoadError(f"{key} must be an array of strings")


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    return bool(metadata.get(f"tokenizer.ggml.{name}", default))
