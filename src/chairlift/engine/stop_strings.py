"""Finds stop strings in text that arrives in pieces, and holds back what might be the start of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopPatterns:
    """Stop strings with their Knuth-Morris-Pratt tables; made once for all choices of a request."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(dict.fromkeys(strings))
        self.tables = tuple(_failure_table(string) for string in self.strings)


class StopStringMatcher:
    """Looks for stop strings one character at a time, so that how a text is cut into tokens changes nothing.

    The string that is complete first wins; of several complete at the same character, the longest.
    """

    def __init__(self, patterns: StopPatterns, *, include_in_output: bool = False) -> None:
        self._patterns = patterns
        self._include = include_in_output
        self._matched = [0] * len(patterns.strings)  # characters matched so far, per string
        self._held = ""

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Take the next piece; return the text that may be shown, and the stop string hit if any.

        A string that becomes complete while not `armed` (min_tokens is not reached) is ordinary text.
        """
        for position, char in enumerate(piece):
            stop = self._advance(char, armed)
            if stop is not None:
                text = self._held + piece[: position + 1]
                self._held = ""
                return (text if self._include else text[: len(text) - len(stop)]), stop
        text = self._held + piece
        keep = len(text) - max(self._matched, default=0)
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """The text still held back, once no more will come."""
        text, self._held = self._held, ""
        return text

    def _advance(self, char: str, armed: bool) -> str | None:
        found: str | None = None
        for i, (string, table) in enumerate(zip(self._patterns.strings, self._patterns.tables, strict=True)):
            matched = self._matched[i]
            while matched and string[matched] != char:
                matched = table[matched - 1]
            if string[matched] == char:
                matched += 1
            if matched == len(string):
                if armed and (found is None or len(string) > len(found)):
                    found = string
                matched = table[-1]
            self._matched[i] = matched
        return found


def _failure_table(string: str) -> list[int]:
    """For each prefix of `string`, the length of its longest proper suffix that is also a prefix."""
    table = [0] * len(string)
    matched = 0
    for i in range(1, len(string)):
        while matched and string[i] != string[matched]:
            matched = table[matched - 1]
        matched += string[i] == string[matched]
        table[i] = matched
    return table
