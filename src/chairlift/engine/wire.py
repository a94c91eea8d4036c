"""The language between front end and engine process: length-prefixed msgspec frames over a Unix socket pair.

A frame is a 4-byte little-endian length and that many bytes of msgpack. Encoders and decoders are made once
and reused. Neither side trusts the other's length: a frame longer than `MAX_FRAME_BYTES` is an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from chairlift.config import EngineConfig
from chairlift.engine.types import EngineInfo, EngineRequest, StepFrame

MAX_FRAME_BYTES = 64 * 1024 * 1024
_PREFIX = 4


class WireError(Exception):
    """A frame that breaks the protocol; the connection cannot be used any more."""


# -- front end -> engine -------------------------------------------------------------------------------------
class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """The first message: which function builds the engine ("package.module:function"), and from what."""

    entry: str
    config: EngineConfig


class AddRequests(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    """Requests that board, in order; also how requests come back after a restart."""

    requests: list[EngineRequest]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Requests to drop; unknown ids are ignored (they may have just finished)."""

    request_ids: list[str]


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Stop now, whatever is in flight."""


# -- engine -> front end -------------------------------------------------------------------------------------
class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The engine is built and waits for requests."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The last message of an engine that could not start or whose step raised."""

    error: str
    error_class: str  # class name, e.g. "ModelLoadError"


ToEngine = Start | AddRequests | Abort | Shutdown
FromEngine = Ready | StepFrame | Failed


class FrameEncoder:
    """Messages to frames."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: ToEngine | FromEngine) -> bytearray:
        """One frame, prefix included; raises WireError when the message is too long."""
        frame = bytearray(_PREFIX)
        self._encoder.encode_into(message, frame, _PREFIX)
        length = len(frame) - _PREFIX
        if length > MAX_FRAME_BYTES:
            raise WireError(f"a {type(message).__name__} of {length} bytes; the limit is {MAX_FRAME_BYTES}")
        frame[:_PREFIX] = length.to_bytes(_PREFIX, "little")
        return frame


class FrameSplitter:
    """A stream of bytes, in pieces of any size, to the payloads of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payload of every frame that `data` completes; raises WireError for one that is too long."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _PREFIX:
                length = int.from_bytes(buffer[start : start + _PREFIX], "little")
                if length > MAX_FRAME_BYTES:
                    raise WireError(f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
                end = start + _PREFIX + length
                if len(buffer) < end:
                    break
                payload = bytes(memoryview(buffer)[start + _PREFIX : end])
                start = end
                yield payload
        finally:
            del buffer[:start]


class EngineSideDecoder:
    """Bytes from the front end to messages."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def feed(self, data: bytes) -> list[ToEngine]:
        """Messages completed by `data`; raises WireError when they make no sense."""
        try:
            return [self._decoder.decode(payload) for payload in self._splitter.feed(data)]
        except msgspec.MsgspecError as error:
            raise WireError(f"undecodable message from the front end: {error}") from error


class FrontSideDecoder:
    """Bytes from the engine to messages."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    def feed(self, data: bytes) -> list[FromEngine]:
        """Messages completed by `data`; raises WireError when they make no sense."""
        try:
            return [self._decoder.decode(payload) for payload in self._splitter.feed(data)]
        except msgspec.MsgspecError as error:
            raise WireError(f"undecodable message from the engine: {error}") from error
