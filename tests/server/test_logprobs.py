from __future__ import annotations

from chairlift.core.messages import TokenLogprobs
from chairlift.server.logprobs import CompletionLogprobs, chat_logprobs, joined, prompt_logprobs
from fakes import ByteTokenizer, entry_of
from server.bos import BosTokenizer
from tokenizer import goldens


def test_offsets_go_on_from_piece_to_piece() -> None:
    """A stream's pieces, joined, are the whole's logprobs."""
    tokenizer = ByteTokenizer()
    entries = [entry_of(i, 1) for i in "a😀é!".encode()]
    whole = CompletionLogprobs(tokenizer, skip_special_tokens=True).add(entries)
    stream = CompletionLogprobs(tokenizer, skip_special_tokens=True)
    pieces = [stream.add([entry]) for entry in entries]
    total = pieces[0]
    for piece in pieces[1:]:
        total = joined(total, piece)
    assert total == whole
    assert whole["text_offset"] == [0, 1, 1, 1, 1, 2, 2, 3]


def test_special_tokens_take_no_room_when_they_are_not_printed() -> None:
    """Offsets are those of the text that the client sees."""
    entries = [entry_of(i, 0) for i in (ord("a"), 256, ord("b"))]
    hidden = CompletionLogprobs(ByteTokenizer(), skip_special_tokens=True).add(entries)
    assert hidden["text_offset"] == [0, 1, 1]
    shown = CompletionLogprobs(ByteTokenizer(), skip_special_tokens=False).add(entries)
    assert shown["text_offset"] == [0, 1, 11]


def test_a_bos_that_was_added_takes_no_room() -> None:
    """The echoed text does not show it, so the prompt's first character has offset 0."""
    tokenizer = BosTokenizer()
    ids = tokenizer.encode("Hi")
    entries = [None, *(entry_of(i, 0) for i in ids[1:])]
    piece = CompletionLogprobs(tokenizer, skip_special_tokens=True).add_prompt(ids, entries, "Hi")
    assert piece["text_offset"] == [0, 0, 1]
    text = "<|im_start|>Hi"
    typed = CompletionLogprobs(tokenizer, skip_special_tokens=True).add_prompt(ids, entries, text)
    assert typed["text_offset"] == [0, 12, 13]


def test_the_space_before_a_text_takes_no_room() -> None:
    """SentencePiece drops the first space of an echoed prompt, not that of the completion; the offsets know."""
    tokenizer = goldens.spm()
    ids = tokenizer.encode("lift token", add_special_tokens=False)
    text, entries = tokenizer.decode(ids), [entry_of(i, 0) for i in ids]
    assert text == "lift token"
    starts = [tokenizer.decode(ids[:count]) for count in range(len(ids))]
    logprobs = CompletionLogprobs(tokenizer, skip_special_tokens=True)
    prompt, completion = logprobs.add_prompt(ids, entries, text), logprobs.add(entries)
    assert prompt["text_offset"] == [len(start) for start in starts]
    assert completion["text_offset"] == [len(text), *(len(text) + len(start) + 1 for start in starts[1:])]


def test_equal_texts_keep_the_most_likely() -> None:
    """Two ids with one text make one entry of top_logprobs."""
    tokenizer = ByteTokenizer(["a", "a"])
    entry = TokenLogprobs(260, -3.0, 3, (259, ord("b")), (-1.0, -2.0))
    piece = CompletionLogprobs(tokenizer, skip_special_tokens=True).add([entry])
    assert piece["top_logprobs"] == [{"a": -1.0, "b": -2.0}]
    assert piece["token_logprobs"] == [-3.0]


def test_the_token_taken_is_among_the_top() -> None:
    """OpenAI: the list may have one more entry than asked for."""
    entry = TokenLogprobs(ord("z"), -5.0, 9, (ord("a"),), (-0.1,))
    piece = CompletionLogprobs(ByteTokenizer(), skip_special_tokens=True).add([entry])
    assert piece["top_logprobs"] == [{"a": -0.1, "z": -5.0}]
    (named,) = prompt_logprobs([entry], ByteTokenizer())
    assert named == {
        "122": {"logprob": -5.0, "rank": 9, "decoded_token": "z"},
        "97": {"logprob": -0.1, "rank": 1, "decoded_token": "a"},
    }


def test_chat_entries_have_the_exact_bytes() -> None:
    """A token of half a character shows U+FFFD as text and its bytes as they are."""
    content = chat_logprobs([entry_of(0xF0, 1)], ByteTokenizer())["content"]
    assert content[0]["token"] == "\ufffd"
    assert content[0]["bytes"] == [0xF0]
    assert content[0]["top_logprobs"][0]["bytes"] == [0xF0]
