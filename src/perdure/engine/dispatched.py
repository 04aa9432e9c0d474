from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.approvals import Approval, NewAnswer
from perdure.engine.children import with_children
from perdure.engine.dispatch import Dispatcher, WaitingRun
from perdure.engine.registry import Registry
from perdure.engine.store import NewRun, RunRow, RunState, StartedRun
from perdure.engine.turns import turn_of
from perdure.errors import UnknownFunction
from perdure.inbox import Message, NewMessage

if TYPE_CHECKING:
    from perdure.engine.archive import ArchiveStore

_AT_ONCE: Final = 16


class _DispatchedStore:
    """A store whose dispatcher hears at once of runs that may go on.

    What changes a run and is not among these methods it hears of a little later, from a look at
    the runs that wait.
    """

    def __init__(self, store: ArchiveStore, dispatcher: Dispatcher, registry: Registry) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._registry = registry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def start_run(self, run: NewRun, holder: str | None) -> StartedRun:
        """Write a run unless its id exists, and have it executed; nobody claims it here.

        Durable when it returns: the run, fsynced.
        """
        del holder
        started = await self._store.start_run(run, None)
        turn = turn_of(run.run_id, run.input_json) if self._is_turn(run) else None
        session = None if turn is None else turn.session
        await wake(self._dispatcher, started.row, session)
        return started

    async def send_message(self, message: NewMessage, *, edit: bool = False) -> Message:
        """Put a message into the inbox of a run, and have a run executed that waited for it."""
        sent = await self._store.send_message(message, edit=edit)
        await self._look_at(message.run_id)
        return sent

    async def answer_approval(
        self, run_id: str, item_id: str, answer: NewAnswer, expect_digest: str | None
    ) -> Approval:
        """Answer what a run asks for, and have it executed."""
        approval = await self._store.answer_approval(run_id, item_id, answer, expect_digest)
        await self._look_at(run_id)
        return approval

    async def resume_run(self, run_id: str) -> RunRow | None:
        """Make a run that failed or needs attention wait for a worker, and have it executed."""
        row = await self._store.resume_run(run_id)
        await wake(self._dispatcher, row)
        return row

    async def request_cancel(self, run_id: str) -> RunRow | None:
        """Cancel a run and those below it, or ask their workers to; None for an unknown run."""
        row = await self._store.request_cancel(run_id)
        if row is not None and row.cancel_requested:
            family = list(await with_children(self._store, [run_id]))
            for start in range(0, len(family), _AT_ONCE):
                some = family[start : start + _AT_ONCE]
                await asyncio.gather(*(self._dispatcher.cancel(name) for name in some))
        return row

    async def _look_at(self, run_id: str) -> None:
        await wake(self._dispatcher, await self._store.read_run(run_id))

    def _is_turn(self, run: NewRun) -> bool:
        try:
            return self._registry.find(run.function, run.version).is_turn
        except UnknownFunction:
            return False


def dispatched(store: ArchiveStore, dispatcher: Dispatcher, registry: Registry) -> ArchiveStore:
    """Return a store whose dispatcher hears of runs that may go on."""
    return cast("ArchiveStore", _DispatchedStore(store, dispatcher, registry))


async def wake(dispatcher: Dispatcher, row: RunRow | None, session: str | None = None) -> None:
    """Have a run executed, if it is there and waits for a worker."""
    if row is not None and row.state is RunState.PENDING:
        await dispatcher.wake(WaitingRun(row.run_id, row.function, row.version, session))
