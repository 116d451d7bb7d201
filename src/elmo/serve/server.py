"""The process around the application: its socket, its patience with slow clients, its end."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elmo.errors import ElmoError

_HEAD_BYTES = 2**16  # of a request, before its body
_CONNECTIONS = 1024  # that may be open beside those with a request; one more is answered with 503
_OTHER_FILES = 128  # that the process may have open
_KEEP_ALIVE = 5.0  # seconds that a connection may be idle
_PIPELINED = 16  # requests that may wait behind one that is being answered on the same connection
_SENDING = 60.0  # seconds in which an answer must have been taken
_LAST_CALL = 1.0  # seconds in which clients of open connections hear that these will be closed


def listen(host: str, port: int) -> socket.socket:
    """A socket for a server; port 0 takes one that is free."""
    if not 0 <= port < 2**16:
        raise ElmoError(f"port {port} is none: give a number from 0 to {2**16 - 1:,}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # the second of a host with a label over 63 letters
        raise ElmoError(f"cannot serve at {host}, port {port}: {error}; choose another --host or --port") from error


def run(app: FastAPI, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, and then finish what was accepted."""
    settings = app.state.work.settings
    connections = _CONNECTIONS + settings.max_requests
    _make_room(connections)
    config = uvicorn.Config(
        app,
        http=_patient(
            _KEEP_ALIVE + settings.body_timeout,
            settings.body_timeout + settings.timeout + _SENDING,
            settings.max_body_bytes,
        ),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(_KEEP_ALIVE),
        timeout_graceful_shutdown=int(settings.timeout + _SENDING),
        limit_concurrency=connections,
    )
    server = _Server(config, app, ready)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Until uvicorn does so itself. It raises them again at its end, when there is no more to do.
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listening])


def _make_room(connections: int) -> None:
    """Let the process have that many connections open: usually it may have 1,024 files, and takes none beyond them."""
    if sys.platform == "win32":
        return
    import resource

    files = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class _Server(uvicorn.Server):
    """Ends in two steps, so that no client sends a request into a connection that is just being closed."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when clients may come."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, close those there are behind their next answers, then those that stay idle."""
        self._app.state.work.draining = True
        for server in self.servers:
            server.close()
        until = asyncio.get_running_loop().time() + _LAST_CALL
        while self.server_state.connections and asyncio.get_running_loop().time() < until and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def _patient(head_seconds: float, seconds: float, body_bytes: int) -> type[HttpToolsProtocol]:
    """Uvicorn's connections, cut where a client takes too long, or sends without end what is no body.

    Args:
        head_seconds: in which the head of a request must be there.
        seconds: in which the rest of the request and its answer must have gone over the line.
        body_bytes: of a body. As much may come beside it, which is how it is cut into chunks; and what is left of a
            body whose request was answered unread may be as long, before the next head.
    """

    class Patient(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _received = 0  # bytes since the last answer, without bodies that are read: the guard counts those
        _in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
            super().connection_made(transport)
            self._cut_after(head_seconds)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._received += len(data)
            answered = self.cycle is None or self.cycle.response_complete
            if not answered and self._in_head:
                self._in_head = False
                self._cut_after(seconds)
            in_body = not answered or (self.cycle is not None and self.cycle.more_body)
            if self._received > _HEAD_BYTES + (body_bytes if in_body else 0) or len(self.pipeline) > _PIPELINED:
                self.transport.abort()

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            if not self.cycle.response_complete:
                self._received -= len(body)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._received = 0
            self._in_head = self.cycle.response_complete  # else the next request was there already
            self._cut_after(head_seconds if self._in_head else seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._timer is not None:
                self._timer.cancel()

        def _cut_after(self, seconds: float) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    return Patient
