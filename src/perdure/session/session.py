from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from perdure.clock import Clock, SystemClock
from perdure.errors import InvalidSessionArgument, SessionError
from perdure.session import headers
from perdure.session.approval_request import approvals_of
from perdure.session.cancelling import OnCancel
from perdure.session.channel import Channel
from perdure.session.codec import Codec
from perdure.session.connection import Connection
from perdure.session.incoming import OnSteer
from perdure.session.lifecycle import RunStatus
from perdure.session.message import WireMessage
from perdure.session.put_out import PutOut, put_out
from perdure.session.received import Received, received
from perdure.session.run import AgentRun, SessionInvocation
from perdure.session.run_node import RunInfo
from perdure.session.tool_call import holds_call


class AgentSession:
    """The side of an agent on one channel: it opens runs and writes what people see of them.

    As a context manager it is connected, and detached at the end, which publishes nothing: runs
    that are open stay so, for another process to adopt. `end` ends them as cancelled. What goes
    wrong behind the scenes is given to `on_error`.
    """

    def __init__(
        self,
        channel: Channel,
        codec: Codec,
        *,
        clock: Clock | None = None,
        on_error: Callable[[SessionError], None] | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self._on_error = on_error
        self._connection = Connection(channel, codec, clock or SystemClock(), self._report)
        self._new_id = new_id or (lambda: str(uuid4()))
        self._runs: list[AgentRun] = []

    async def connect(self) -> None:
        """Attach to the channel; done once, and again after it failed.

        Raises `SubscriptionFailed`, and `SessionClosed` once the session is detached.
        """
        await self._connection.open()

    def create_run(
        self,
        invocation: SessionInvocation,
        *,
        run_id: str | None = None,
        invocation_id: str | None = None,
        on_cancel: OnCancel | None = None,
        on_steer: OnSteer | None = None,
    ) -> AgentRun:
        """Return a run that answers an input, to be opened with `start`. Publishes nothing.

        Where the input goes on with a run, that is the run, whatever `run_id` says. `on_cancel`
        decides whether a cancel counts: once it returns False, that one is refused for good, and
        one at which it raises is reported and does not count either. `on_steer` is told, while the
        run is open, of what is said to it.
        """
        return self._run(
            invocation,
            self._new_id() if run_id is None else run_id,
            self._new_id() if invocation_id is None else invocation_id,
            adopted=False,
            on_cancel=on_cancel,
            on_steer=on_steer,
        )

    def adopt_run(
        self,
        *,
        run_id: str,
        invocation_id: str,
        trigger: SessionInvocation | None = None,
        on_cancel: OnCancel | None = None,
        on_steer: OnSteer | None = None,
    ) -> AgentRun:
        """Return a run that another process has started, to be opened with `load`.

        Publishes nothing. Without a trigger, what is written does not say which input it answers.
        The rest is that of `create_run`.
        """
        return self._run(
            trigger or SessionInvocation(),
            run_id,
            invocation_id,
            adopted=True,
            on_cancel=on_cancel,
            on_steer=on_steer,
        )

    async def find_input(
        self, invocation: SessionInvocation, timeout_seconds: float = 30.0
    ) -> WireMessage:
        """Return what a client sent, once it is seen in history or live.

        Whatever has come after it is read by then. Raises `RunNotObserved` after the time.
        """
        requests, event_id = self._connection.reader.tree.requests, invocation.input_event_id
        await self._connection.observe(
            lambda: requests.trigger(event_id) is not None,
            f"the input {event_id!r}",
            timeout_seconds,
            asyncio.Event(),
        )
        found = requests.trigger(event_id)
        assert found is not None  # it was waited for
        return found

    def find_run(self, run_id: str) -> RunInfo | None:
        """Return a run as far as it is seen, or None."""
        node = self._connection.reader.tree.run(run_id)
        return None if node is None else node.info

    def is_cancelled(self, run_id: str) -> bool:
        """Whether somebody has cancelled a run since it was suspended, as far as that is seen."""
        tree = self._connection.reader.tree
        node = tree.run(run_id)
        since = "" if node is None else node.info.lifecycle.end_serial or node.invoked_at
        return any(cancel.serial > since for cancel in tree.requests.cancels(run_id=run_id))

    def read_steps(self, run_id: str) -> list[PutOut]:
        """Return what the complete steps of a run have put out, as far as it is seen."""
        node = self._connection.reader.tree.run(run_id)
        return [] if node is None else put_out(node, self._connection.codec)

    def last_said(self, run_id: str) -> SessionInvocation | None:
        """Return what was sent to a run last since it was suspended, or None if nothing was."""
        node = self._connection.reader.tree.run(run_id)
        if node is None:
            return None
        since = node.info.lifecycle.end_serial or ""
        sent = [message for message in node.inputs if message.serial > since]
        return SessionInvocation(sent[-1].header(headers.EVENT_ID)) if sent else None

    def received(self, said: WireMessage) -> Received:
        """Return what a client sent, which `find_input` has found, with all of its parts."""
        parts = self._connection.reader.tree.requests.parts(said.header(headers.EVENT_ID))
        return received(parts or [said], self._connection.codec)

    def find_call(self, run_id: str, tool_call_id: str) -> str | None:
        """Return the message of a run that holds a tool call, or None if it is not seen."""
        node = self._connection.reader.tree.run(run_id)
        if node is None:
            return None
        held = [one for one in node.messages() if holds_call(one, tool_call_id)]
        return held[-1].codec_message_id if held else None

    def read_call(self, run_id: str, tool_call_id: str) -> dict[str, Any] | None:
        """Return a tool call as the part of a message that it is, or None if it is not seen."""
        node = self._connection.reader.tree.run(run_id)
        messages = [] if node is None else [folded.message for folded in node.messages()]
        parts = [part for message in messages for part in message.get("parts", [])]
        return next((part for part in parts if part.get("toolCallId") == tool_call_id), None)

    def find_approval(self, run_id: str, tool_call_id: str) -> str | None:
        """Return under which id a run asks whether a call may be made, or None if unseen."""
        node = self._connection.reader.tree.run(run_id)
        return None if node is None else approvals_of(node).get(tool_call_id) or None

    def changes(self) -> AsyncIterator[None]:
        """Yield now, and then whenever what is seen may have changed, until this is detached."""
        return self._connection.changes()

    async def load_history(self) -> None:
        """Read the conversation to its beginning. Raises `HistoryFailed`."""
        await self._connection.load_history()

    async def detach(self) -> None:
        """Leave the channel. Publishes nothing; what waits for a run is refused."""
        for run in self._runs:
            run.detach()
        self._runs.clear()
        await self._connection.close()

    async def end(self) -> None:
        """End the runs that are open as cancelled, and leave the channel.

        Durable when it returns: their ends, but those that `on_error` has been told of.
        """
        for run in list(self._runs):
            if run.is_open:
                try:
                    await run.end(RunStatus.CANCELLED)
                except SessionError as error:
                    self._report(error)
                run.cancelled.set()
        await self.detach()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detach."""
        await self.detach()

    def _run(
        self,
        asked: SessionInvocation,
        run_id: str,
        invocation_id: str,
        *,
        adopted: bool,
        on_cancel: OnCancel | None,
        on_steer: OnSteer | None,
    ) -> AgentRun:
        if not run_id or not invocation_id:
            raise InvalidSessionArgument("the id of a run or of an invocation is empty")
        run = AgentRun(
            self._connection,
            asked,
            run_id=run_id,
            invocation_id=invocation_id,
            adopted=adopted,
            on_cancel=on_cancel,
            on_steer=on_steer,
            new_id=self._new_id,
        )
        self._runs = [other for other in self._runs if not other.is_over] + [run]
        return run

    def _report(self, error: SessionError) -> None:
        if self._on_error is not None:
            self._on_error(error)
