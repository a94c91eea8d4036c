"""Tests of output processing: text, stop strings, logprobs and finish reasons of one choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.messages import TokenLogprobs
from chairlift.engine.outputs import OutputProcessor, OutputRules, named_logprobs
from chairlift.engine.types import CompletionDelta, Logprob, TokenUpdate
from chairlift.sampling_params import SamplingParams
from fakes import EOS, EOS_TEXT, FIRST_WORD, ByteTokenizer, entry_of


class Harness:
    """Feeds a processor token by token and keeps its deltas."""

    def __init__(self, params: SamplingParams, words: tuple[str | bytes, ...] = ()) -> None:
        self.tokenizer = ByteTokenizer(words)
        self.rules = OutputRules(params, self.tokenizer)
        self.output = OutputProcessor(0, self.rules)
        self.deltas: list[CompletionDelta] = []

    def feed(
        self, ids: list[int], *, finish: str | None = None, stop: int | None = None, by: int = 1
    ) -> None:
        for start in range(0, len(ids), by):
            if self.output.finished:
                return
            piece = ids[start : start + by]
            last = start + by >= len(ids)
            logprobs = [entry_of(i, 1) for i in piece]
            self.deltas.append(
                self.output.push(
                    TokenUpdate("r", piece, finish if last else None, stop if last else None, logprobs)
                )
            )

    @property
    def joined(self) -> str:
        return "".join(delta.text for delta in self.deltas)


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("text", ["\U0001f600" * 4, "ď" * 4, "世" * 4, "\U0001f468‍\U0001f469‍\U0001f467"])
def test_b18_no_broken_character_is_shown(text: str) -> None:
    """Characters of several tokens come whole: no delta has U+FFFD, and they join to the literal."""
    harness = Harness(SamplingParams(max_tokens=None))
    harness.feed([*bytes_of(text), EOS], finish="stop")
    assert all("�" not in delta.text for delta in harness.deltas)
    assert harness.joined == text == harness.output.text


def test_b18_an_unfinished_character_shows_at_the_very_end_only() -> None:
    """When max_tokens cuts a character, the text is what decoding all ids gives: U+FFFD, in the last delta."""
    harness = Harness(SamplingParams())
    harness.feed(bytes_of("a\U0001f600")[:-1], finish="length")
    assert [delta.text for delta in harness.deltas] == ["a", "", "", "�"]


@given(
    st.lists(st.sampled_from([*b"ab \n\xc3\xa9\xf0\x9f\x98\x80", EOS, FIRST_WORD]), max_size=20),
    st.integers(1, 5),
)
def test_b25_streamed_text_is_decoded_text(ids: list[int], by: int) -> None:
    """Joined deltas, the final text and tokenizer.decode of the ids are one and the same."""
    harness = Harness(SamplingParams(), ("  word",))
    harness.feed([*ids, ord("x")], finish="length", by=by)
    expected = harness.tokenizer.decode([*ids, ord("x")])
    assert harness.joined == harness.output.text == expected


@pytest.mark.parametrize("by", [1, 4])
@pytest.mark.parametrize("text", [" Hello", "    .", "\n\n\tx", "don't"])
def test_b25_white_space_is_kept(text: str, by: int) -> None:
    """First spaces, runs of spaces and apostrophes stay as they are."""
    harness = Harness(SamplingParams())
    harness.feed([*bytes_of(text), EOS], finish="stop", by=by)
    assert harness.joined == harness.output.text == text


@pytest.mark.parametrize("by", [1, 3, 30])
def test_b20_a_stop_string_that_straddles_tokens(by: int) -> None:
    """A stop string that starts inside a token and ends inside another leaves no character behind."""
    words = ("abcd", "efgh", "ijkl")
    harness = Harness(SamplingParams(stop=["cdefghi"]), words)
    first = FIRST_WORD
    harness.feed([first, first + 1, first + 2, first, first], by=by)
    assert harness.joined == harness.output.text == "ab"
    assert (harness.output.finish_reason, harness.output.stop_reason) == ("stop", "cdefghi")
    assert harness.output.token_ids == [first, first + 1, first + 2]  # what came after does not count


def test_b20_the_stop_string_can_be_included() -> None:
    """With include_stop_str_in_output the text ends with the stop string, not after it."""
    harness = Harness(SamplingParams(stop=["cde"], include_stop_str_in_output=True), ("abcd", "efgh"))
    harness.feed([FIRST_WORD, FIRST_WORD + 1])
    assert harness.joined == "abcde"


def test_a_false_start_of_a_stop_string_is_shown_later() -> None:
    """Text held back as a possible stop string comes out when it turns out not to be one, or at the end."""
    harness = Harness(SamplingParams(stop=["STOP"]))
    harness.feed(bytes_of("xSTxST"), finish="length")
    assert [delta.text for delta in harness.deltas] == ["x", "", "", "STx", "", "ST"]


def test_a_stop_string_completed_by_the_last_token_beats_length() -> None:
    """The finish reason is "stop" when the stop string is complete with the last token allowed."""
    harness = Harness(SamplingParams(stop=["no"]))
    harness.feed(bytes_of("yno"), finish="length")
    assert (harness.joined, harness.output.finish_reason) == ("y", "stop")


def test_min_tokens_lets_stop_strings_pass() -> None:
    """A stop string that is complete within the first min_tokens tokens is text; a later one ends it."""
    harness = Harness(SamplingParams(stop=["."], min_tokens=2))
    harness.feed(bytes_of("a.b.c"))
    assert harness.joined == "a.b"


def test_b26_end_of_turn_is_not_text() -> None:
    """EOS is in the ids, not in the text, and the stop reason is None."""
    harness = Harness(SamplingParams())
    harness.feed([*bytes_of("hi"), EOS], finish="stop")
    assert harness.joined == "hi"
    assert harness.output.token_ids[-1] == EOS
    assert harness.output.stop_reason is None


def test_b26_a_stop_string_that_names_a_special_token() -> None:
    """The engine is told to stop at its id, the text has none of it, and the stop reason is the string."""
    harness = Harness(SamplingParams(stop=[EOS_TEXT, "zz"], stop_token_ids=[5]))
    assert harness.rules.engine_params(0, 16).stop_token_ids == (5, EOS)
    assert harness.rules.engine_params(0, 16).stop == ()
    harness.feed([*bytes_of("hi"), EOS], finish="stop", stop=EOS)
    assert (harness.joined, harness.output.stop_reason) == ("hi", EOS_TEXT)


@pytest.mark.parametrize("skip", [True, False])
def test_b26_the_special_stop_can_be_included(skip: bool) -> None:
    """include_stop_str_in_output shows the special token once, printed anyway or not."""
    params = SamplingParams(stop=[EOS_TEXT], include_stop_str_in_output=True, skip_special_tokens=skip)
    harness = Harness(params)
    harness.feed([*bytes_of("hi"), EOS], finish="stop", stop=EOS)
    assert harness.joined == "hi" + EOS_TEXT


def test_b26_special_text_spelled_out_by_ordinary_tokens_stops_too() -> None:
    """A model that writes the marker letter by letter is stopped by its text."""
    harness = Harness(SamplingParams(stop=[EOS_TEXT]))
    harness.feed(bytes_of("hi" + EOS_TEXT + "more"))
    assert harness.joined == "hi"


def test_a_stop_token_is_not_text() -> None:
    """An ordinary token in stop_token_ids ends the text before itself."""
    harness = Harness(SamplingParams(stop_token_ids=[ord("b")]))
    harness.feed(bytes_of("ab"), finish="stop", stop=ord("b"))
    assert (harness.joined, harness.output.stop_reason) == ("a", ord("b"))


def test_logprobs_stay_beside_their_tokens() -> None:
    """Each delta has one entry per token, also when a stop string cuts a step's tokens short."""
    harness = Harness(SamplingParams(stop=["cd"], logprobs=1))
    harness.feed(bytes_of("abcdef"), by=6)
    (delta,) = harness.deltas
    assert [entry.token_id for entry in delta.logprobs or []] == delta.token_ids == bytes_of("abcd")
    result = harness.output.result()
    assert [next(iter(entry)) for entry in result.logprobs or []] == bytes_of("abcd")
    assert result.cumulative_logprob == sum(-i / 256 for i in bytes_of("abcd"))


@pytest.mark.parametrize(("taken", "rank", "order"), [("z", 9, "zab"), ("b", 2, "ba")])
def test_the_token_taken_comes_first_in_logprobs(taken: str, rank: int, order: str) -> None:
    """As in vLLM the first key is the token taken, whether it is one of the most likely or not."""
    entry = TokenLogprobs(ord(taken), -2.0, rank, (ord("a"), ord("b")), (-1.0, -2.0))
    named = named_logprobs(entry, ByteTokenizer())
    assert list(named) == bytes_of(order)
    assert named[ord(taken)] == Logprob(-2.0, rank, taken)


def test_logprobs_not_asked_for_are_not_kept() -> None:
    """Without `logprobs` neither deltas nor result have any."""
    harness = Harness(SamplingParams())
    harness.feed(bytes_of("ab"), finish="length")
    assert all(delta.logprobs is None for delta in harness.deltas)
    assert harness.output.result().logprobs is None


def test_detokenize_off_gives_ids_only() -> None:
    """With detokenize=False there are ids and no text."""
    harness = Harness(SamplingParams(detokenize=False))
    harness.feed(bytes_of("ab"), finish="length")
    assert (harness.joined, harness.output.token_ids) == ("", bytes_of("ab"))


def test_an_abort_shows_what_was_held_back() -> None:
    """Ending from this side flushes the text."""
    harness = Harness(SamplingParams(stop=["STOP"]))
    harness.feed(bytes_of("xST"))
    delta = harness.output.finish("abort")
    assert (delta.text, delta.finish_reason) == ("ST", "abort")
