"""What stands before every route: its name, its key, a body's size and time, the places in the house, clients that go.

It is plain ASGI, for what it limits must not have been read before it looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
import traceback
from collections.abc import Collection, Iterable

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmo.serve.metrics import Metrics
from elmo.serve.refused import Refused
from elmo.serve.work import Work

log = logging.getLogger("elmo.serve")

_READING = ("GET", "HEAD")
_OPEN = frozenset({"/", "/healthz", "/openapi.json", "/favicon.ico"})
_OPEN_FOLDER = "/explorer/page/"
_GONE = 499  # counted, never sent
_LINGER = 1.0  # seconds for which the rest of a request that was refused is read and dropped

Headers = Iterable[tuple[bytes, bytes]]


class Guard:
    """Middleware that reads a request under limits, and gives it up when its client does."""

    def __init__(self, app: ASGIApp, work: Work, metrics: Metrics, paths: Collection[str]) -> None:
        """Stand before an app.

        Args:
            app: what answers.
            work: whose settings and places hold.
            metrics: told of each request.
            paths: those that are counted by name; others share one, for a client may make up as many as it likes.
        """
        self._app = app
        self._work = work
        self._metrics = metrics
        self._paths = frozenset(paths)
        key = work.settings.api_key
        self._key = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; other events go through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        answer = _Answer(send, self._work)
        try:
            await self._answer(scope, receive, answer)
        except Refused as refused:
            await _refuse(refused, scope, receive, answer)
        except Exception as error:
            # Not the message: it may quote the request.
            log.error("%s in\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            await _refuse(Refused(500, "internal", "a bug: see the server's log"), scope, receive, answer)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.request(path, answer.status, time.monotonic() - started)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        self._check_host(scope)
        self._check_key(scope)
        if scope["method"] in _READING:  # open to a full house, for they say how full it is; a body is dropped unread
            await self._unless_gone(scope, b"", receive, answer)
            return
        with self._work.visit():
            await self._unless_gone(scope, await self._body(scope, receive), receive, answer)

    def _check_host(self, scope: Scope) -> None:
        """Refuse a name that is not the server's: a page's own name, led here by its DNS, would make it our page."""
        hosts, given = self._work.settings.hosts, _header(scope["headers"], b"host")
        if hosts and given is not None and host_name(given.decode("latin-1")) not in hosts:
            message = f"this server is called {', '.join(hosts)}: start it with --allow-host NAME for another name"
            raise Refused(421, "host", message, close=True)

    def _check_key(self, scope: Scope) -> None:
        path = scope["path"]
        is_open = scope["method"] in _READING and (path in _OPEN or path.startswith(_OPEN_FOLDER))
        if self._key is None or is_open:
            return
        given = _header(scope["headers"], b"x-api-key") or b""
        scheme, _, bearer = (_header(scope["headers"], b"authorization") or b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given = bearer.strip()
        if not hmac.compare_digest(_digest(given), self._key):
            message = "this server wants its key, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
            raise Refused(401, "key", message, close=True)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body; it is never held beyond its limit, nor waited for beyond its time."""
        limit = self._work.settings.max_body_bytes
        large = Refused(413, "too_large", f"the body is larger than {limit:,} bytes: send less at a time", close=True)
        announced = _header(scope["headers"], b"content-length") or b""
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
            raise large
        body = bytearray()
        try:
            async with asyncio.timeout(self._work.settings.body_timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(_GONE, "gone", "the client went away")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise large
        except TimeoutError:
            seconds = self._work.settings.body_timeout
            raise Refused(408, "slow", f"the request was not there within {seconds:g} seconds", close=True) from None
        return bytes(body)

    async def _unless_gone(self, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
        """Let the app answer, and stop it when the client hangs up."""
        gone = asyncio.create_task(_gone(receive))
        task = asyncio.create_task(_call(self._app, scope, _Replay(body, gone), answer))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            task.cancel()
            gone.cancel()


class _Answer:
    """Sends an answer and notes how it went."""

    def __init__(self, send: Send, work: Work) -> None:
        self.status = _GONE
        self.begun = False
        self._send = send
        self._work = work

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self.status = message["status"]
            if self._work.draining:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)


class _Replay:
    """Gives a body that was read again, then waits for the client to go."""

    def __init__(self, body: bytes, gone: asyncio.Task[None]) -> None:
        self._body: bytes | None = body
        self._gone = gone

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}


async def _call(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(refused: Refused, scope: Scope, receive: Receive, answer: _Answer) -> None:
    if refused.status == _GONE or answer.begun:
        return
    response = JSONResponse(refused.content, refused.status, refused.headers)
    if not refused.close:
        await response(scope, receive, answer)
        return
    # The connection stays for a moment behind the answer: closed with something unread, it would be reset, and a
    # client that is still sending would never see why.
    await answer({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await answer({"type": "http.response.body", "body": response.body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body", False):
                pass
    await answer({"type": "http.response.body", "body": b"", "more_body": False})


def _digest(key: bytes) -> bytes:
    """Of one length for every key, so that comparing tells nothing of the right one's."""
    return hashlib.sha256(key).digest()


def host_name(host: str) -> str:
    """What a Host header calls the server, without the port: a name, or an address without brackets."""
    name = host.lower()
    if name.startswith("["):
        return name.partition("]")[0].removeprefix("[")
    return name if name.count(":") > 1 else name.partition(":")[0].removesuffix(".")


def _header(headers: Headers, name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
