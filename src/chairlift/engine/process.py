"""The engine process: reads its orders from a socket, steps while there is work, sends one frame a step.

Nothing here blocks on a slow front end: what can't be sent yet waits in a buffer while orders are still read
(an abort must get through), and only when that buffer is full does the engine stop stepping.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

from chairlift.engine.wire import (
    Abort,
    AddRequests,
    EngineSideDecoder,
    Failed,
    FrameEncoder,
    FromEngine,
    Ready,
    Shutdown,
    Start,
    ToEngine,
    WireError,
)
from chairlift.errors import ChairliftError

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine

_RECV_BYTES = 1 << 18
_MAX_UNSENT_BYTES = 8 << 20
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
EXIT_FAILED = 70  # the engine reported why before it ended


class FrontEndGoneError(Exception):
    """The other end of the socket is closed: nobody is left to work for."""


class Port:
    """The engine's end of the socket: orders in, frames out, neither waiting for the other."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection)
        self._encoder = FrameEncoder()
        self._decoder = EngineSideDecoder()
        self._unsent = bytearray()

    def send(self, message: FromEngine) -> None:
        """Send a message, or keep what the socket does not take now."""
        self._unsent += self._encoder.encode(message)
        self._write()

    @property
    def has_room(self) -> bool:
        """False while so much is unsent that the engine had better not produce more."""
        return len(self._unsent) <= _MAX_UNSENT_BYTES

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Orders that have arrived; sends what it can meanwhile. With `wait`, waits until either can be done.

        Raises:
            FrontEndGoneError: the other end is closed.
        """
        orders: list[ToEngine] = []
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        for _, event in self._poll.poll(None if wait else 0):
            if event & select.POLLOUT:
                self._write()
            if event & ~select.POLLOUT:
                orders += self._read()
        return orders

    def flush(self) -> None:
        """Send everything, waiting as long as it takes or until the other end is closed."""
        self._socket.setblocking(True)
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError) as error:
            raise FrontEndGoneError from error

    def _read(self) -> list[ToEngine]:
        try:
            data = self._socket.recv(_RECV_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError as error:
            raise FrontEndGoneError from error
        if not data:
            raise FrontEndGoneError
        return self._decoder.feed(data)


def child_main(fd: int, parent_pid: int) -> None:
    """Run an engine for the front end at the other end of the socket `fd`, until it says stop or goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the front end decides
    _die_with_parent(parent_pid)
    port = Port(socket.socket(fileno=fd))
    try:
        sys.exit(_serve(port))
    except FrontEndGoneError:
        sys.exit(0)


def _serve(port: Port) -> int:
    try:
        engine, orders = _build(port)
    except FrontEndGoneError:
        raise
    except Exception as error:
        return _report(port, error)
    try:
        port.send(Ready(engine.info))
        run_loop(engine, port, orders)
    except FrontEndGoneError:
        raise
    except Exception as error:
        return _report(port, error)
    finally:
        engine.close()
    return 0


def run_loop(engine: Engine, port: Port, orders: list[ToEngine]) -> None:
    """Obey orders and step, until Shutdown. Waits only while there is nothing to do, or too much unsent."""
    while True:
        for order in orders:
            if isinstance(order, Shutdown):
                return
            _obey(engine, order)
        frame = engine.step() if port.has_room else None
        if frame is not None:
            port.send(frame)
        orders = port.receive(wait=not (engine.has_unfinished() and port.has_room))


def _obey(engine: Engine, order: ToEngine) -> None:
    if isinstance(order, AddRequests):
        for request in order.requests:
            engine.add_request(request)
    elif isinstance(order, Abort):
        engine.abort(order.request_ids)
    else:
        raise WireError(f"unexpected {type(order).__name__}")


def _build(port: Port) -> tuple[Engine, list[ToEngine]]:
    """The engine that the first message describes, and orders that came right behind it."""
    orders: list[ToEngine] = []
    while not orders:
        orders = port.receive(wait=True)
    start = orders.pop(0)
    if not isinstance(start, Start):
        raise WireError(f"the first message is {type(start).__name__}, not Start")
    module, _, function = start.entry.partition(":")
    engine: Engine = getattr(import_module(module), function)(start.config)
    return engine, orders


def _report(port: Port, error: Exception) -> int:
    """Tell the front end why this process ends; what nobody foresaw leaves its traceback in the log, too."""
    if not isinstance(error, ChairliftError):
        traceback.print_exception(error)
    message = str(error) or repr(error)
    port.send(Failed(message, type(error).__name__))
    port.flush()
    return EXIT_FAILED


def _die_with_parent(parent_pid: int) -> None:
    """Ask Linux for SIGKILL when the thread that started us ends: a stuck step never sees the closed socket."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NAME, b"chairlift-eng", 0, 0, 0)
    except (OSError, AttributeError):  # not Linux: the closed socket has to do
        return
    if os.getppid() != parent_pid:
        raise SystemExit("the front end ended before its engine started")
