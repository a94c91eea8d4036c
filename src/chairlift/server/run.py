"""Serving an application over HTTP until interrupted, or until the engine is gone for good."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from chairlift.errors import ConfigError

if TYPE_CHECKING:
    from chairlift.engine.frontend import AsyncFrontend

BACKLOG = 2048
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_S = 0.2
DEAD_GRACE_S = 2.0  # for clients and probes to hear of it
CUT_OFF_S = 3.0  # after this much more, connections that nobody reads are closed


def run_server(
    app: FastAPI,
    *,
    host: str,
    port: int,
    log_level: str = "warning",
    graceful_timeout_s: float = 5.0,
    on_ready: Callable[[str], None] = print,
) -> int:
    """Serve until SIGINT or SIGTERM; port 0 picks a free one.

    Args:
        graceful_timeout_s: seconds that requests in flight may go on after the signal; then they end with
            a 503, or an error event.
        on_ready: called with the URL once requests are answered.

    Returns:
        Exit code: 0, or 1 when the engine died and could not be brought back.

    Raises:
        ConfigError: the address cannot be listened on.
        ConfigError, ModelLoadError, EngineDeadError: the engine cannot start.
    """
    with listen(host, port) as listener:
        return asyncio.run(serve(app, listener, log_level, graceful_timeout_s, on_ready))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError when the address is taken or wrong."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}, outside [0, 65535]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {error}") from error
    # asyncio turns Nagle's delays of 40 ms off only where a socket says that it is TCP; connections inherit it.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())


async def serve(
    app: FastAPI,
    listener: socket.socket,
    log_level: str,
    graceful_timeout_s: float,
    on_ready: Callable[[str], None],
) -> int:
    """Serve on a listening socket, in the running event loop; returns an exit code."""
    frontend: AsyncFrontend = app.state.context.frontend
    if frontend.state == "starting":
        await frontend.start()  # here rather than in the application's life: its errors are ours to show
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level in ("debug", "info"),
        ws="none",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(graceful_timeout_s + CUT_OFF_S),
        backlog=BACKLOG,
    )
    server = _Server(config, lambda: on_ready(url_of(listener)))
    app.state.server = server  # should_exit = True stops it
    watch = asyncio.ensure_future(_watch(frontend, server, graceful_timeout_s))
    try:
        await server.serve([listener])
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await frontend.close()
    return 1 if server.engine_died else 0


def url_of(listener: socket.socket) -> str:
    """Where a listening socket can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, with a call once it answers, and with an exit code of 0 after a signal."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.engine_died = False
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's own, but the signal is not raised again afterwards: it did what it was sent for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _watch(frontend: AsyncFrontend, server: _Server, graceful_timeout_s: float) -> None:
    """End the server a little after the engine is dead for good, so that a supervisor can start it anew; and
    after the signal to stop, end the requests that take too long with an answer."""
    while not server.should_exit:
        await asyncio.sleep(WATCH_S)
        if frontend.state == "dead" and not server.should_exit:
            server.engine_died = True
            await asyncio.sleep(DEAD_GRACE_S)
            server.should_exit = True
            return
    await asyncio.sleep(graceful_timeout_s)
    await frontend.close()
