"""`ProcessClient`: starts the engine as a child process and talks to it over a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from chairlift.config import EngineConfig
from chairlift.engine.failures import error_named
from chairlift.engine.types import EngineInfo, EngineRequest, StepFrame
from chairlift.engine.wire import (
    Abort,
    AddRequests,
    Failed,
    FrameEncoder,
    FromEngine,
    FrontSideDecoder,
    Ready,
    Shutdown,
    Start,
    ToEngine,
    WireError,
)
from chairlift.errors import ChairliftError, ConfigError, EngineDeadError, ModelLoadError

# The child gets our module path as it is: neither its working directory nor the environment decides what it imports.
_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from chairlift.engine.process import child_main; child_main(int(sys.argv[1]), int(sys.argv[2]))"
)
_CLOSE_TIMEOUT_S = 5.0
_LAST_GASP_S = 0.2
_STDERR = 2


class ProcessClient:
    """An engine in a process of its own; an `AsyncEngineClient`.

    `spawn` is synchronous and quick, and needs no event loop: call it first, do slow imports while the engine
    loads its weights, then `await start()`. The child ends when this process ends, however it ends.

    What the first engine resolved (size of the KV pool, context) is asked of those that replace it, however much
    memory is free then: what was accepted can be computed again.

    On Linux it also ends when the thread that called `spawn` or `restart` ends; so call them in a thread that stays.

    Args:
        entry: "package.module:function"; the function takes `config` and returns an `Engine`, in the child.
    """

    def __init__(self, entry: str, config: EngineConfig) -> None:
        self._entry = entry
        self._config = config
        self._encoder = FrameEncoder()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None  # until `start` hands it to the event loop
        self._link: _Link | None = None
        self._ready = False

    def spawn(self) -> socket.socket:
        """Start the child process; return our end of the connection, which `start` will take over.

        Raises:
            EngineDeadError: the system refuses to start a process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), str(os.getpid()), *sys.path],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,
                )
            ours.sendall(self._encoder.encode(Start(self._entry, self._config)))
        except OSError as error:
            ours.close()
            raise EngineDeadError(f"the engine process could not be started: {error}") from error
        self._socket = ours
        return ours

    async def start(self) -> EngineInfo:
        """See `AsyncEngineClient.start`; spawns first if nobody has."""
        connection = self._socket or self.spawn()
        self._socket = None
        link = _Link()
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=connection)
        self._link = link
        try:
            message = await link.receive()
        except EngineDeadError as error:
            raise self._death(error) from None
        if isinstance(message, Ready):
            self._ready = True
            self._config = _as_resolved(self._config, message.info)
            return message.info
        self._kill()
        raise _start_error(message)

    async def restart(self) -> EngineInfo:
        """See `AsyncEngineClient.restart`."""
        self._kill()
        return await self.start()

    def add_request(self, request: EngineRequest) -> None:
        """See `AsyncEngineClient.add_request`."""
        self._send(AddRequests([request]))

    def abort(self, request_ids: Sequence[str]) -> None:
        """See `AsyncEngineClient.abort`."""
        self._send(Abort(list(request_ids)))

    async def next_frame(self) -> StepFrame:
        """See `AsyncEngineClient.next_frame`."""
        if self._link is None:
            raise EngineDeadError("the engine process was not started")
        try:
            message = await self._link.receive()
        except EngineDeadError as error:
            raise self._death(error) from None
        if isinstance(message, StepFrame):
            return message
        self._kill()
        if isinstance(message, Failed):
            raise EngineDeadError(f"{message.error_class}: {message.error}")
        raise EngineDeadError(f"the engine sent an unexpected {type(message).__name__}")

    def kill(self, reason: str) -> None:
        """See `AsyncEngineClient.kill`."""
        if self._process is not None:
            self._process.kill()
        if self._link is not None:
            self._link.lose(reason)

    @property
    def pid(self) -> int | None:
        """See `AsyncEngineClient.pid`."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def close(self) -> None:
        """Ask the engine to stop, and end it by force if it has not within five seconds (at once while it loads)."""
        if self._process is not None and self._ready:
            self._send(Shutdown())
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_TIMEOUT_S)
        self._kill()

    def _send(self, message: ToEngine) -> None:
        if self._link is not None:
            self._link.send(self._encoder.encode(message))

    def _kill(self) -> None:
        """End the process for sure, reap it, and close our end."""
        process, self._process, self._ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _death(self, error: EngineDeadError) -> EngineDeadError:
        """The error with how the process ended, once it has closed the connection."""
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_GASP_S)  # its end of the socket closes a moment before it is gone
        self._kill()
        if process is None:
            return error
        return EngineDeadError(f"{error.message} ({_exit_text(process.returncode)})")


class _Link(asyncio.Protocol):
    """The front end's end of the socket in the event loop: bytes to messages, and a queue of them."""

    def __init__(self) -> None:
        self._decoder = FrontSideDecoder()
        self._messages: deque[FromEngine] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._messages.extend(self._decoder.feed(data))
        except WireError as error:
            self.lose(str(error))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(
            "the engine process has ended" if exc is None else f"the connection to the engine broke: {exc}"
        )

    async def receive(self) -> FromEngine:
        """The next message; those that came before the end are still given. Raises EngineDeadError then."""
        while not self._messages:
            if self._lost is not None:
                raise EngineDeadError(self._lost)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._messages.popleft()

    def send(self, frame: bytearray) -> None:
        """Send, or buffer while the engine is busy."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def lose(self, reason: str) -> None:
        """No more messages will come; the first reason counts."""
        if self._lost is None:
            self._lost = reason
        self.close()
        self._wake()

    def close(self) -> None:
        """Close our end at once."""
        transport, self._transport = self._transport, None
        if transport is not None and not self._loop.is_closed():
            transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _as_resolved(config: EngineConfig, info: EngineInfo) -> EngineConfig:
    """The config that asks for exactly the sizes that an engine came up with."""
    return replace(
        config,
        cache=replace(config.cache, num_kv_blocks=info.num_kv_blocks),
        model=replace(config.model, max_model_len=info.max_model_len),
    )


def _start_error(message: FromEngine) -> ChairliftError:
    if not isinstance(message, Failed):
        return EngineDeadError(f"the engine's first message is {type(message).__name__}, not Ready")
    error = error_named(message.error_class, message.error)
    if isinstance(error, (ConfigError, ModelLoadError)):
        return error
    return EngineDeadError(f"the engine could not start: {message.error_class}: {message.error}")


def _exit_text(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
