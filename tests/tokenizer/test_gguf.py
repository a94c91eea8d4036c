from __future__ import annotations

import time
from typing import Any

import pytest

from chairlift.errors import ModelLoadError
from chairlift.tokenizer.gguf import from_gguf_metadata
from tokenizer import goldens

SMOLLM = goldens.load("tokenizer_goldens.json")
SPM = goldens.load("spm_goldens.json")


def test_ids_equal_hugging_face_for_200_texts() -> None:
    """B49: a byte-level tokenizer rebuilt from GGUF metadata gives the original's ids, and its text back."""
    tokenizer, original = goldens.smollm(), SMOLLM["subset_original_ids"]
    assert len(SMOLLM["goldens"]) == 200
    for golden in SMOLLM["goldens"]:
        ids = tokenizer.encode(golden["text"])
        assert [original[i] for i in ids] == golden["ids"], golden["text"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == golden["decoded"] == golden["text"]
        assert tokenizer.decode(ids) == golden["decoded_skipping"]


def test_digits_are_split_one_by_one() -> None:
    """B49: the split rule `smollm` is honoured, which GGUF-derived tokenizers have forgotten before."""
    tokenizer, original = goldens.smollm(), SMOLLM["subset_original_ids"]
    assert [original[i] for i in tokenizer.encode("2024")] == [34, 32, 34, 36]


def test_sentencepiece_ids_equal_sentencepiece() -> None:
    """B49: merges rebuilt from scores give SentencePiece's own ids and text, byte fallback included."""
    tokenizer = goldens.spm()
    for golden in SPM["goldens"]:
        ids = tokenizer.encode(golden["text"], add_special_tokens=False)
        assert ids == golden["ids"], golden["text"]
        assert tokenizer.decode(ids) == golden["decoded"]


def test_unknown_split_rule_is_refused_by_name() -> None:
    """B49: an unknown `tokenizer.ggml.pre` is an error that names it, not a silent fallback."""
    with pytest.raises(ModelLoadError, match=r"'mystery'.*supported: .*smollm"):
        from_gguf_metadata(goldens.smollm_metadata(pre="mystery"))


def test_missing_split_rule_warns(caplog: pytest.LogCaptureFixture) -> None:
    """A file that names no split rule loads with GPT-2's, and says so."""
    tokenizer = from_gguf_metadata(goldens.smollm_metadata(pre=None))
    assert "GPT-2" in caplog.text
    assert tokenizer.decode(tokenizer.encode("Hello 2024")) == "Hello 2024"


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3"])
def test_llama3_writes_bos_and_keeps_three_digits_together(pre: str) -> None:
    """Llama 3 adds a BOS without being told to, and splits digits by three."""
    metadata = goldens.smollm_metadata(pre=pre, add_bos_token=None)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "123", "1234"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1, 1]
    tokenizer = from_gguf_metadata(metadata)
    first, *rest = tokenizer.encode("1234")
    assert first == tokenizer.bos_token_id
    assert [tokenizer.token_text(i) for i in rest] == ["123", "4"]


@pytest.mark.parametrize("kind", ["smollm", "spm"])
def test_bos_is_written_once(kind: str) -> None:
    """B45: a BOS is added when the file asks for one, and one typed by the user is not doubled."""
    make = getattr(goldens, f"{kind}_metadata")
    tokenizer = from_gguf_metadata(make(add_bos_token=True))
    bos = tokenizer.bos_token_id
    text = tokenizer.token_text(bos)
    plain = tokenizer.encode("Hello")
    assert plain[0] == bos
    assert plain.count(bos) == 1
    assert tokenizer.encode(text + "Hello") == plain
    assert bos not in tokenizer.encode("Hello", add_special_tokens=False)
    assert from_gguf_metadata(make(add_bos_token=False)).encode("Hello") == plain[1:]


def test_eos_flag_is_honoured() -> None:
    """add_eos_token appends the end of sequence."""
    tokenizer = from_gguf_metadata(goldens.spm_metadata(add_eos_token=True))
    assert tokenizer.encode("Hello")[-1] == 2
    assert goldens.spm().encode("Hello")[-1] != 2


def test_ends_of_a_turn_are_united() -> None:
    """B26: the stop set is the file's eos, its eot, and the turn-end token that the template writes."""
    metadata = goldens.smollm_metadata(eos_token_id=0, eot_token_id=3)
    assert from_gguf_metadata(metadata).eos_token_ids == (0, 3)
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}<|im_end|>"
    assert from_gguf_metadata(metadata).eos_token_ids == (0, 3, 2)


def test_user_defined_tokens_are_not_split_and_are_printed() -> None:
    """A user-defined token in text is one id, and not special."""
    metadata = goldens.smollm_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<ski é>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4]
    tokenizer = from_gguf_metadata(metadata)
    ids = tokenizer.encode("a<ski é>b")
    assert len(ids) == 3
    assert not tokenizer.is_special(ids[1])
    assert tokenizer.decode(ids) == "a<ski é>b"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [1, 2]}, "array of strings"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"merges": ["ab"]}, "not two pieces"),
        ({"merges": ["zzz qqq"]}, "damaged"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000, outside the vocabulary"),
        ({"tokens": ["a", "a"], "token_type": None}, "same token twice"),
    ],
)
def test_damaged_metadata_is_an_error_message(changes: dict[str, Any], message: str) -> None:
    """B50: broken tokenizer metadata raises ModelLoadError naming the key."""
    with pytest.raises(ModelLoadError, match=message):
        from_gguf_metadata(goldens.smollm_metadata(**changes))


def test_sentencepiece_needs_scores() -> None:
    """A SentencePiece vocabulary without scores is refused."""
    with pytest.raises(ModelLoadError, match="scores is missing"):
        from_gguf_metadata(goldens.spm_metadata(scores=None))


def test_a_large_vocabulary_is_built_quickly() -> None:
    """The 49k-entry vocabulary's build is a fraction of a second; here a synthetic one of its size."""
    metadata = goldens.smollm_metadata()
    tokens, merges = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.merges"])
    known, letters = set(tokens), [t for t in tokens if len(t) == 1]
    for left in tokens[300:]:
        for right in letters[:150]:
            if left + right not in known and len(tokens) < 49152:
                known.add(left + right)
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}
    metadata["tokenizer.ggml.token_type"] = [3] * 17 + [1] * (len(tokens) - 17)
    start = time.thread_time()
    assert from_gguf_metadata(metadata).vocab_size == 49152
    assert time.thread_time() - start < 0.4  # seconds of one core; about 0.1
