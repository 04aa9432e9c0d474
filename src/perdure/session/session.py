from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import uuid4

from perdure.clock import Clock, SystemClock
from perdure.errors import InvalidSessionArgument, SessionError
from perdure.session.channel import Channel
from perdure.session.codec import Codec
from perdure.session.connection import Connection
from perdure.session.lifecycle import RunStatus
from perdure.session.run import AgentRun, SessionInvocation


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
    ) -> AgentRun:
        """Return a run that answers an input, to be opened with `start`. Publishes nothing.

        Where the input goes on with a run, that is the run, whatever `run_id` says.
        """
        return self._run(
            invocation,
            self._new_id() if run_id is None else run_id,
            self._new_id() if invocation_id is None else invocation_id,
            adopted=False,
        )

    def adopt_run(
        self, *, run_id: str, invocation_id: str, trigger: SessionInvocation | None = None
    ) -> AgentRun:
        """Return a run that another process has started, to be opened with `load`.

        Publishes nothing. Without a trigger, what is written does not say which input it answers.
        """
        return self._run(trigger or SessionInvocation(), run_id, invocation_id, adopted=True)

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
        self, asked: SessionInvocation, run_id: str, invocation_id: str, *, adopted: bool
    ) -> AgentRun:
        if not run_id or not invocation_id:
            raise InvalidSessionArgument("the id of a run or of an invocation is empty")
        run = AgentRun(
            self._connection,
            asked,
            run_id=run_id,
            invocation_id=invocation_id,
            adopted=adopted,
            new_id=self._new_id,
        )
        self._runs = [other for other in self._runs if not other.is_over] + [run]
        return run

    def _report(self, error: SessionError) -> None:
        if self._on_error is not None:
            self._on_error(error)
