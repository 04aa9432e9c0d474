from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from perdure.runtimes.temporal.request import OperationRequest
from perdure.sidecar.answers import Answers, Pending, Unavailable, UnusableAnswer
from perdure.sidecar.config import Limits
from perdure.sidecar.metrics import Metrics
from perdure.sidecar.request import Deployment, InvalidRequest, admit

_log: Final = logging.getLogger("perdure.sidecar")

PATH: Final = "/v1/execute"
_AGAIN: Final = {"retry-after": "1"}
_CLOSE: Final = {"connection": "close"}
_READ_ON: Final = 8
"""How many times as much as it may be a body is read, so that its sender gets to hear of it."""


class Sidecar:
    """The ASGI app that answers requests for operations with their records.

    `authorization` is what that header has to be, whole; None lets everybody in.
    """

    def __init__(
        self,
        answers: Answers,
        deployment: Deployment,
        *,
        authorization: str | None,
        max_request_bytes: int,
        metrics: Metrics | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._answers = answers
        self._deployment = deployment
        self._authorization = None if authorization is None else authorization.encode()
        self._max_bytes = max_request_bytes
        self._open: set[asyncio.Timeout] = set()
        self._bodies = asyncio.Semaphore(deployment.limits.bodies)
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._draining = False
        self._starlette = Starlette(
            routes=[
                Route(PATH, self._execute, methods=["POST"]),
                Route("/healthz", self._health, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._refuse, Exception: self._fail},
        )
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the process."""
        await self._starlette(scope, receive, send)

    @property
    def limits(self) -> Limits:
        """What this process bears."""
        return self._deployment.limits

    async def drain(self) -> None:
        """Refuse requests from now on; return once those that are open have been answered.

        Those that are still open after `drain_seconds` are told to ask again: what they have begun
        goes on.
        """
        self._draining = True
        try:
            async with asyncio.timeout(self.limits.drain_seconds):
                await self._none_open.wait()
        except TimeoutError:
            for being_open in self._open:
                being_open.reschedule(0.0)
            await self._none_open.wait()

    async def _execute(self, request: Request) -> Response:
        self._authorize(request)
        if self._draining or len(self._open) >= self.limits.requests:
            raise _unavailable("this sidecar takes no more requests now; ask again later")
        being_open = asyncio.timeout(None)
        self._open.add(being_open)
        self._none_open.clear()
        self.metrics.open_requests.inc()
        try:
            async with being_open:
                pending = await self._begin(request)
                record = await self._wait(request, pending)
        except TimeoutError as error:
            if not being_open.expired():
                raise
            raise _unavailable(
                "this sidecar shuts down; what it has begun goes on: ask the same again"
            ) from error
        except ClientDisconnect as error:  # nobody is told
            raise HTTPException(400, "the body was not sent to its end") from error
        finally:
            self._open.remove(being_open)
            self.metrics.open_requests.dec()
            if not self._open:
                self._none_open.set()
        self.metrics.requests.labels("200").inc()
        return Response(record, media_type="application/json; charset=utf-8")

    def _authorize(self, request: Request) -> None:
        size = sum(len(name) + len(value) for name, value in request.headers.raw)
        if size > self.limits.header_bytes:
            raise HTTPException(431, "the headers are too large; send fewer of them")
        given = request.headers.getlist("authorization")
        if self._authorization is None:
            return
        # Compared in constant time, and as bytes, since a header may hold any.
        alike = hmac.compare_digest(
            given[0].encode("latin-1") if given else b"", self._authorization
        )
        if not alike or len(given) != 1:
            raise HTTPException(401, "the authorization header is not that of this sidecar")

    async def _begin(self, request: Request) -> Pending:
        """Read a request and begin what it asks for; nothing of its body is kept."""
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._max_bytes * _READ_ON:
            raise self._too_large()
        async with self._bodies:
            asked = await self._read(request)
            try:
                async with asyncio.timeout(self.limits.start_seconds):
                    return await self._answers.begin(asked)
            except InvalidRequest as error:
                raise HTTPException(400, str(error)) from error
            except (Unavailable, TimeoutError) as error:
                _log.warning("%s was not begun: %s", asked.invocation.stable_key, error)
                raise _unavailable("Temporal cannot be reached now; ask again later") from error

    async def _read(self, request: Request) -> OperationRequest:
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._body(request)
        except TimeoutError as error:
            raise HTTPException(408, "the body took too long", _CLOSE) from error
        try:
            return admit(body, self._deployment)
        except InvalidRequest as error:
            raise HTTPException(400, str(error)) from error

    async def _body(self, request: Request) -> bytes:
        body, size = bytearray(), 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= self._max_bytes:
                body += chunk
            elif size > self._max_bytes * _READ_ON:
                break  # whoever sends as much need not hear why
        if size > self._max_bytes:
            raise self._too_large()
        return bytes(body)

    async def _wait(self, request: Request, pending: Pending) -> bytes:
        """Return the record, as long as somebody waits for it here."""
        recording = asyncio.ensure_future(pending.record())
        # After its body, all that is received of a request is the end of its connection.
        gone = asyncio.ensure_future(request.receive())
        both: list[asyncio.Future[Any]] = [recording, gone]
        try:
            await asyncio.wait(
                both, timeout=self.limits.wait_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not recording.done():
                raise _unavailable("the operation goes on; ask the same again for its record")
            return recording.result()
        except Unavailable as error:
            _log.warning("the record of an operation cannot be had: %s", error)
            raise _unavailable("Temporal cannot be reached now; ask again later") from error
        except UnusableAnswer as error:
            raise HTTPException(502, str(error)) from error
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _health(self, _: Request) -> Response:
        """Say that requests are served, or no more."""
        return _said("closing", 503) if self._draining else _said("ok")

    async def _ready(self, _: Request) -> Response:
        """Say whether operations can be begun now."""
        ready = not self._draining and await self._answers.ready()
        return _said("ready") if ready else _said("Temporal cannot be reached", 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # it is registered for these
        if request.url.path == PATH:
            self.metrics.requests.labels(str(error.status_code)).inc()
        return _said(error.detail, error.status_code, error.headers)

    async def _fail(self, request: Request, error: Exception) -> Response:
        _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
        self.metrics.requests.labels("500").inc()
        return _said("the sidecar failed; its log says why", 500)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"a request is {self._max_bytes} bytes at most", _CLOSE)


def _said(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(text, status, {"cache-control": "no-store", **(headers or {})})


def _unavailable(message: str) -> HTTPException:
    return HTTPException(503, message, _AGAIN)
