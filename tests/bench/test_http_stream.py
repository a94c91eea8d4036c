"""Responses and events are read right however the network cuts their bytes."""

from __future__ import annotations

import pytest

from chairlift.bench.http_stream import EventParser, HttpError, ResponseParser

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\ndata: \r\n1b;name=x\r\n\xc3\xa9 and twenty more bytes..\n\r\n1\r\n\n\r\n0\r\nX-Trailer: yes\r\n\r\n"
)
CHUNKED_BODY = b"data: \xc3\xa9 and twenty more bytes..\n\n"
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nno\r\n!"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nall there is"


def pieces(data: bytes, cut: int) -> list[bytes]:
    return [data[:cut], data[cut:]]


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (CHUNKED, 200, CHUNKED_BODY),
        (SIZED, 404, b"no\r\n!"),
        (INTERIM, 404, b"no\r\n!"),
        (EMPTY, 200, b""),
        (NO_CONTENT, 204, b""),
    ],
)
def test_a_response_cut_anywhere_is_the_same(data: bytes, status: int, body: bytes) -> None:
    """Status, body and end do not depend on where the bytes are split, down to one at a time."""
    cuts = [pieces(data, cut) for cut in range(len(data) + 1)]
    for parts in [*cuts, [data[i : i + 1] for i in range(len(data))]]:
        parser = ResponseParser()
        assert b"".join(map(parser.feed, parts)) == body
        assert (parser.status, parser.finished) == (status, True)
        parser.close()


def test_a_body_may_go_on_until_the_connection_is_closed() -> None:
    """Without a length or chunks the close is the end, and only the close."""
    for cut in range(len(UNTIL_CLOSE) + 1):
        parser = ResponseParser()
        assert b"".join(map(parser.feed, pieces(UNTIL_CLOSE, cut))) == b"all there is"
        assert not parser.finished
        parser.close()
        assert parser.finished


@pytest.mark.parametrize("data", [CHUNKED, SIZED])
def test_a_response_that_breaks_off_is_an_error(data: bytes) -> None:
    """Wherever the connection is lost before the last byte, the answer is not taken for a whole one."""
    for cut in range(len(data)):
        parser = ResponseParser()
        parser.feed(data[:cut])
        with pytest.raises(HttpError, match="closed before the end"):
            parser.close()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    """Bytes of another protocol, wrong sizes and endless lines are errors, not waits."""
    with pytest.raises(HttpError):
        ResponseParser().feed(data)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_cut_anywhere_are_the_same(newline: bytes) -> None:
    """Comments, other fields and empty events vanish; two lines of data are joined; splits change nothing."""
    lines = [
        b": keep-alive",
        b"",
        b"data: {1}",
        b"",
        b"id: 7",
        b"data:a",
        b"data:  b",
        b"",
        b"",
        b"data: [DONE]",
        b"",
    ]
    data = newline.join([*lines, b""])
    for cut in range(len(data) + 1):
        parser = EventParser()
        events = [event for part in pieces(data, cut) for event in parser.feed(part)]
        assert events == [b"{1}", b"a\n b", b"[DONE]"]
    parser = EventParser()
    assert [e for i in range(len(data)) for e in parser.feed(data[i : i + 1])] == events
