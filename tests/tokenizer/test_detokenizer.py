from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from chairlift.tokenizer.tokenizer import HFTokenizer
from tokenizer import goldens

TOKENIZERS = {"smollm": goldens.smollm(), "spm": goldens.spm()}


def pieces(tokenizer: HFTokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def added(tokenizer: HFTokenizer, ids: list[int], *, skip: bool) -> str:
    """What ids add to the decoded text when they follow a letter."""
    before = tokenizer.encode("a", add_special_tokens=False)
    return tokenizer.decode([*before, *ids], skip_special_tokens=skip).removeprefix("a")


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
def test_pushes_join_to_what_is_added_for_the_sample_texts(kind: str, skip: bool) -> None:
    """B25: joined deltas are what every golden text's ids add to the text before, first space included."""
    tokenizer = TOKENIZERS[kind]
    for golden in goldens.load("tokenizer_goldens.json")["goldens"]:
        ids = tokenizer.encode(golden["text"])
        assert "".join(pieces(tokenizer, ids, skip=skip)) == added(tokenizer, ids, skip=skip)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_pushes_join_to_what_is_added_for_any_ids(kind: str, data: st.DataObject) -> None:
    """B25: the same for any sequence of ids, broken UTF-8 and control tokens included."""
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    skip = data.draw(st.booleans())
    assert "".join(pieces(tokenizer, ids, skip=skip)) == added(tokenizer, ids, skip=skip)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", ["😀😀😀😀", "ďďďď", "世世世世", "👨‍👩‍👧‍👦", "\U0010ffff"])
def test_no_half_characters(kind: str, text: str) -> None:
    """B18: a character spread over several tokens arrives whole, with its last token."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(tokenizer, ids)
    assert "".join(parts).removeprefix(" ") == text
    assert not any("\ufffd" in part for part in parts)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().removeprefix(" ") == text


def test_broken_bytes_become_u_fffd_as_soon_as_they_can_never_be_valid() -> None:
    """An unfinished character is held back; a wrong next byte, or the end, turns it into U+FFFD."""
    tokenizer = TOKENIZERS["smollm"]
    lead, *_ = tokenizer.encode("😀")
    (letter,) = tokenizer.encode("a")
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push(lead) == ""
    assert detokenizer.push(letter) == "\ufffda"
    assert detokenizer.push(lead) == ""
    assert detokenizer.flush() == "\ufffd"


def test_sentencepiece_keeps_the_first_space_of_what_goes_on() -> None:
    """B25: decode drops the space that encoding put before a text; after a prompt the same space is text."""
    tokenizer = TOKENIZERS["spm"]
    ids = tokenizer.encode("  Hello  world", add_special_tokens=False)
    assert tokenizer.decode(ids) == "  Hello  world"
    assert "".join(pieces(tokenizer, ids)) == "   Hello  world"
