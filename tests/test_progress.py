"""The progress bar: drawn when asked to, silent otherwise."""

from __future__ import annotations

import io

from chairlift.progress import Progress


def test_draws_the_final_count() -> None:
    """The last line shows everything done, whatever was skipped by the redraw limit."""
    stream = io.StringIO()
    with Progress("Generating", 3, "requests", enabled=True, stream=stream) as progress:
        for _ in range(3):
            progress.advance()
    assert "3/3 requests" in stream.getvalue()


def test_is_silent_when_the_stream_is_no_terminal() -> None:
    """Logs and pipes stay clean."""
    stream = io.StringIO()
    with Progress("Generating", 3, "requests", stream=stream) as progress:
        progress.advance()
    assert stream.getvalue() == ""
