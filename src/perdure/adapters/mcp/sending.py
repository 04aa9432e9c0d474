from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

import anyio.abc
import mcp_types as types
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage

_under_way: ContextVar[Sending | None] = ContextVar("perdure_mcp_sending", default=None)

Heard = Callable[[str, Mapping[str, Any] | None], None]
"""Is told of each notification in the order of its arrival."""


class Sending:
    """One request on its way to a server: how far it came, and what went wrong.

    `headers` go with it over HTTP. `status` is what an HTTP server answered with instead of a
    message, or None; `lost` says that the connection was.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = dict(headers)
        self.status: int | None = None
        self.lost = False
        self._begun = False
        self._unreachable = False
        self._reached = False

    @property
    def may_have_left(self) -> bool:
        """Whether a server may have got any of it."""
        return self._reached or (self._begun and not self._unreachable)

    def begin(self) -> None:
        """Note that it is about to be sent, once more where the server asked back."""
        self._reached = self.may_have_left
        self._begun, self._unreachable, self.lost, self.status = False, False, False, None

    @property
    def asked_back(self) -> bool:
        """Whether a server had got it before it was sent the last time."""
        return self._reached

    def turned_back(self) -> None:
        """Note that the server looked at nothing of it."""
        self._begun = False

    def write(self) -> None:
        """Note that it is being written."""
        self._begun = True

    def miss(self) -> None:
        """Note that there is no connection to write it to."""
        self._unreachable = True
        self.lost = True

    def __enter__(self) -> Self:
        self._token = _under_way.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _under_way.reset(self._token)


def sending() -> Sending | None:
    """Return the request that this code is part of sending, or None."""
    return _under_way.get()


class Tap:
    """Stands before the stream that messages are written to, and notes that a request is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message."""
        under_way = sending()
        if under_way is not None and isinstance(item.message, types.JSONRPCRequest):
            under_way.write()
        await self._stream.send(item)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)


class Line(JSONRPCDispatcher):
    """Sends requests with the headers that they have, and tells of notifications as they come."""

    def __init__(self, read: Any, write: Any, heard: Heard | None) -> None:
        super().__init__(read, Tap(write))
        self._heard: Final = heard

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: types.RequestId | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the raw result."""
        under_way = sending()
        if under_way is not None and under_way.headers:
            opts = {**(opts or {})}
            opts["headers"] = {**under_way.headers, **opts.get("headers", {})}
        return await super().send_raw_request(
            method, params, opts, _related_request_id=_related_request_id
        )

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Receive messages until the connection ends."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            # Here, because handlers of notifications run beside the response that follows them.
            if self._heard is not None:
                self._heard(method, params)
            return on_notify_intercept is not None and on_notify_intercept(method, params)

        await super().run(on_request, on_notify, intercept, task_status=task_status)
