from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from perdure.errors import CancelListenerFailed, SessionError
from perdure.session import headers
from perdure.session.message import WireMessage
from perdure.wording import text_of


class CancelRequest(msgspec.Struct, frozen=True):
    """A cancel as a client has sent it; `client_id` is whom the channel knows the sender as."""

    event_id: str
    client_id: str
    run_id: str
    input_codec_message_id: str
    serial: str


OnCancel = Callable[[CancelRequest], Awaitable[bool]]
"""Decides about a cancel: False refuses it."""


class Cancelling:
    """Whether a run is cancelled: once by anybody, unless somebody may refuse it.

    Each request is decided about once. One that was refused stays so, however often it arrives.
    """

    def __init__(self, on_cancel: OnCancel | None, report: Callable[[SessionError], None]) -> None:
        self.cancelled = asyncio.Event()
        self._on_cancel = on_cancel
        self._report = report
        self._known: set[tuple[str, str]] = set()
        self._deciding: dict[asyncio.Task[None], tuple[str, str]] = {}

    def note(self, requests: Iterable[WireMessage]) -> None:
        """Take in cancels of the run, those that are known already too."""
        for request in requests:
            key = request.client_id, request.header(headers.EVENT_ID) or request.serial
            if self.cancelled.is_set() or key in self._known:
                continue
            self._known.add(key)
            if self._on_cancel is None:
                self.cancelled.set()
                return
            task = asyncio.create_task(self._decide(self._on_cancel, _read(request)))
            self._deciding[task] = key
            task.add_done_callback(self._forget)

    async def decided(self) -> None:
        """Return once all that has arrived is decided about."""
        while self._deciding:
            await asyncio.wait(self._deciding)

    def close(self) -> None:
        """Decide nothing more; what is not decided yet is asked again if it arrives again."""
        for task in self._deciding.keys() - {asyncio.current_task()}:
            task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        key = self._deciding.pop(task)
        if task.cancelled():
            self._known.discard(key)

    async def _decide(self, on_cancel: OnCancel, request: CancelRequest) -> None:
        try:
            refused = await on_cancel(request) is False
        except Exception as error:  # noqa: BLE001  a boundary: it is anybody's code
            failed = CancelListenerFailed(
                f"the run {request.run_id} is not cancelled, since `on_cancel` raised:"
                f" {text_of(error) or type(error).__name__}"
            )
            failed.__cause__ = error
            self._report(failed)
            return
        if not refused:
            self.cancelled.set()


def _read(request: WireMessage) -> CancelRequest:
    return CancelRequest(
        event_id=request.header(headers.EVENT_ID),
        client_id=request.client_id,
        run_id=request.header(headers.RUN_ID),
        input_codec_message_id=request.header(headers.INPUT_CODEC_MESSAGE_ID),
        serial=request.serial,
    )
