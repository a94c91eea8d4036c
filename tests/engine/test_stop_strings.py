"""Tests of the stop string matcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.engine.stop_strings import StopPatterns, StopStringMatcher


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    """All texts released for `pieces`, the flush included, and the hit."""
    matcher = StopStringMatcher(StopPatterns(stops), include_in_output=include)
    released = []
    for piece in pieces:
        text, hit = matcher.push(piece)
        released.append(text)
        if hit is not None:
            return released, hit
    return [*released, matcher.flush()], None


def oracle(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The plain definition: read characters until a stop string is complete; the longest of those that are."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


TEXTS = st.text(alphabet="ab\n", max_size=20)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


@given(st.lists(TEXTS, max_size=8), STOPS, st.booleans())
def test_cutting_the_text_into_pieces_changes_nothing(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    """Whatever the pieces, the text released is that of the plain definition, and so is the hit."""
    released, hit = run(pieces, stops, include=include)
    assert ("".join(released), hit) == oracle("".join(pieces), stops, include)


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_nothing_is_held_back_without_reason(pieces: list[str], stops: list[str]) -> None:
    """After each piece only the longest end of the text that begins a stop string is held."""
    matcher = StopStringMatcher(StopPatterns(stops))
    seen = shown = ""
    for piece in pieces:
        seen += piece
        text, hit = matcher.push(piece)
        shown += text
        if hit is not None:
            return
        held = seen[len(shown) :]
        longest = max(n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n]))
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stops", "text", "shown", "hit"),
    [
        (["abc", "b"], "xabc", "xa", "b"),  # complete first, though "abc" begins first
        (["bc", "abc"], "xabc", "x", "abc"),  # complete at once: the longest
        (["END"], "xENEND", "xEN", "END"),  # a false start inside a start
        (["\n\n"], "a\nb\n\nc", "a\nb", "\n\n"),
        (["\U0001f600"], "hi\U0001f600!", "hi", "\U0001f600"),
    ],
)
def test_which_stop_wins(stops: list[str], text: str, shown: str, hit: str) -> None:
    """The stop string that is complete first ends the text; of several, the longest."""
    for pieces in ([text], list(text)):
        released, found = run(pieces, stops)
        assert ("".join(released), found) == (shown, hit)


def test_an_unarmed_stop_is_text() -> None:
    """A stop string that is complete before min_tokens is reached is shown, and one that goes on after it counts."""
    matcher = StopStringMatcher(StopPatterns(["aa"]))
    assert matcher.push("xaa", armed=False) == ("xa", None)
    assert matcher.push("a") == ("", "aa")
