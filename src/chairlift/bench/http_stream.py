"""The bytes of an HTTP/1.1 response and of the events in it, in pieces of any size. No input or output here."""

from __future__ import annotations

MAX_HEAD_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 12  # of a chunk's size and its extensions


class HttpError(Exception):
    """The bytes are not a response, or end in the middle of one."""


class ResponseParser:
    """One response: `status`, `headers` (lower-case names) and, as it comes, the body.

    The body is in chunks, of a given length, or goes on until the connection is closed (RFC 9112, section 6.3).
    Interim 1xx answers are skipped; a trailer is read and dropped.
    """

    def __init__(self) -> None:
        self.status = 0  # until the head is there
        self.headers: dict[str, str] = {}
        self.finished = False
        self._buffer = bytearray()
        self._left: int | None = (
            None  # bytes of the body, or of this chunk; None: until the connection is closed
        )
        self._read = (
            self._head
        )  # the next part: takes it from the buffer, or returns False if it is not all there
        self._body: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` brings; raises HttpError when it is no response."""
        self._buffer += data
        while not self.finished and self._read():
            pass
        body, self._body = b"".join(self._body), []
        return body

    def close(self) -> None:
        """The connection was closed; raises HttpError if the response is not complete."""
        if self.status and self._read == self._content and self._left is None:
            self.finished = True
        if not self.finished:
            raise HttpError("the connection was closed before the end of the response")

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HttpError(f"the head of the response is longer than {MAX_HEAD_BYTES} bytes")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        status = _status(lines[0])
        if 100 <= status < 200:
            return True
        fields = (line.partition(":") for line in lines[1:])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        self.status = status
        self._begin_body()
        return True

    def _begin_body(self) -> None:
        length = self.headers.get("content-length")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._read = self._chunk_size
        elif self.status in (204, 304):
            self.finished = True
        else:
            self._left = None if length is None else _number(length, 10)
            self._read = self._content

    def _content(self) -> bool:
        """A body without chunks."""
        self._take()
        self.finished = self._left == 0
        return False

    def _chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self._left = _number(line.partition(b";")[0].decode("latin-1").strip(), 16)
        self._read = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        self._take()
        if self._left:
            return False
        self._read = self._chunk_end
        return True

    def _chunk_end(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if line:
            raise HttpError("a chunk is longer than its size says")
        self._read = self._chunk_size
        return True

    def _trailer(self) -> bool:
        line = self._line()
        self.finished = line == b""
        return line is not None

    def _take(self) -> None:
        """Move what is there of the body, or of this chunk, out of the buffer."""
        data = bytes(self._buffer[: self._left])
        del self._buffer[: len(data)]
        self._body.append(data)
        if self._left is not None:
            self._left -= len(data)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise HttpError(f"a line between chunks is longer than {MAX_LINE_BYTES} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


class EventParser:
    """Server-sent events: the `data` of each. Lines end with LF or CR LF; comments and other fields are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes; several lines of data are joined with LF."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events


def _status(line: str) -> int:
    version, _, rest = line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise HttpError(f"not an HTTP response: {line:.80}")
    return int(rest[:3])


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0 or not text[:1].isalnum():
        raise HttpError(f"{text!r:.40} is not a length")
    return number
