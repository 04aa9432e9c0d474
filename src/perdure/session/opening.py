from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.errors import InvalidSessionArgument
from perdure.session import headers
from perdure.session.attribution import Attribution, attribute
from perdure.session.connection import Connection
from perdure.session.incoming import Incoming
from perdure.session.lifecycle import ENDS, RunStatus
from perdure.session.run_node import RunInfo


class Opening(msgspec.Struct, frozen=True):
    """Whose a run is that is to be opened, and the event with which it is.

    `event` is None where that has been said for this invocation before.
    """

    who: Attribution
    event: str | None


class Entrance:
    """The way into a run: what has to be seen first, and what it is refused for."""

    def __init__(self, connection: Connection, incoming: Incoming, invocation_id: str) -> None:
        self._connection = connection
        self._incoming = incoming
        self._invocation_id = invocation_id

    async def start(self, seconds: float) -> Opening:
        """Wait for the trigger, and return how the run begins or is resumed.

        Raises `InvalidSessionArgument` where the run has ended.
        """
        incoming = self._incoming
        await self._observe(lambda: incoming.is_located, "the input that asks for the run", seconds)
        continues = incoming.trigger.header(headers.RUN_ID) if incoming.trigger else ""
        if continues:
            incoming.run_id = continues
            what = f"the start of the run {continues}"
            await self._observe(lambda: self._started is not None, what, seconds)
        known = self._started
        status = known.lifecycle.status if known else None
        if status in ENDS:
            self._refuse(f"has ended ({status}); start another run")
        who = self._who()
        await self._settle_cancels()
        if known and status is RunStatus.ACTIVE and known.goes_on_as == self._invocation_id:
            return Opening(who, None)
        resumes = continues or status is RunStatus.SUSPENDED
        return Opening(who, headers.AI_RUN_RESUME if resumes else headers.AI_RUN_START)

    async def load(self, seconds: float) -> Attribution:
        """Wait for the start of the run and its trigger, and return whose it is.

        Raises `InvalidSessionArgument` where it is suspended or has ended.
        """

        def is_seen() -> bool:
            return self._started is not None and self._incoming.is_located

        what = f"the start of the run {self._incoming.run_id}, and its input,"
        await self._observe(is_seen, what, seconds)
        run = self._started
        assert run is not None  # it was waited for
        status = run.lifecycle.status
        if status is RunStatus.SUSPENDED:
            self._refuse("is suspended; resume it: create a run for the input that answers it")
        if status in ENDS:
            self._refuse(f"has ended ({status}); it can only be read")
        await self._settle_cancels()
        return self._who()

    @property
    def _started(self) -> RunInfo | None:
        """The run, once its start is seen."""
        run = self._connection.reader.tree.run(self._incoming.run_id)
        return run.info if run is not None and run.started else None

    async def _observe(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        stop = self._incoming.cancelling.cancelled
        await self._connection.observe(ready, what, seconds, stop)

    async def _settle_cancels(self) -> None:
        """Look for cancels, and wait until those are decided about."""
        self._incoming.look()
        await self._incoming.cancelling.decided()

    def _who(self) -> Attribution:
        return attribute(
            self._connection.reader.tree,
            self._incoming.trigger,
            run_id=self._incoming.run_id,
            invocation_id=self._invocation_id,
        )

    def _refuse(self, why: str) -> None:
        raise InvalidSessionArgument(f"the run {self._incoming.run_id} {why}")
