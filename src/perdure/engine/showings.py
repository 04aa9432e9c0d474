from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from perdure.engine.letters import letter_of
from perdure.engine.shown_again import show_again
from perdure.engine.store import RunEnd, RunState, RunStore
from perdure.engine.turns import EndedTurn, TurnRow
from perdure.errors import (
    InvalidPayload,
    RunError,
    RunNotObserved,
    SessionCancelled,
    SessionError,
    StorageError,
    StreamFailed,
)
from perdure.fence import Fence
from perdure.observe import log
from perdure.ports import Ports
from perdure.session.cancelling import CancelRequest, OnCancel
from perdure.session.codec import UiMessageCodec
from perdure.session.incoming import OnSteer
from perdure.session.lifecycle import ENDS, RunStatus
from perdure.session.received import Received
from perdure.session.run import AgentRun, SessionInvocation
from perdure.session.run_node import RunInfo
from perdure.session.session import AgentSession
from perdure.showing import Showing

AGENT: Final = "agent"
"""The client id under which runs write to their sessions."""

_MOST_TOLD: Final = 20
_TOLD_SECONDS: Final = 10.0
_STATUS: Final = {
    RunState.COMPLETED: RunStatus.COMPLETE,
    RunState.CANCELLED: RunStatus.CANCELLED,
    RunState.FAILED: RunStatus.ERROR,
}


class Showings:
    """Opens the sessions of runs that answer what was said there, and tells how these runs end.

    While a run is executed, its writes carry its fence. Its end is told once it is written, by the
    worker that wrote it, or by any other that finds it untold: a session is told once.
    """

    def __init__(self, store: RunStore, ports: Ports) -> None:
        self._store = store
        self._ports = ports
        self._swept_to = ""

    async def open(
        self, fence: Fence, turn: TurnRow, cancel: Callable[[], Awaitable[None]]
    ) -> Showing | None:
        """Open the run of a claim in its session, and note that the session is to hear of its end.

        `cancel` is called once if somebody cancels the run there, or has. None where nobody is to
        see it: what it answers is in the session no more, or it was cancelled before it began.

        Durable when it returns: the note, and that the run has started, or goes on.
        If it raises: a `SessionError`, `LeaseLost` or a `StorageError`.
        """
        await self._store.note_turn(turn)
        session, said = self._session(turn, fence), asyncio.Queue[Received]()
        try:
            await session.connect()
            if not await self._is_asked(session, turn):
                await session.detach()
                return None
            run = await _open(session, turn, fence.generation, on_steer=said.put_nowait)
        except SessionCancelled:
            await session.detach()
            await cancel()
            return None
        except BaseException:
            await session.detach()
            raise
        showing = Showing(session, run, self._ports.observer)

        async def watching() -> None:
            await showing.cancelled()
            await cancel()

        showing.watch([watching(), self._hear(turn.run_id, said)])
        return showing

    async def _hear(self, run_id: str, said: asyncio.Queue[Received]) -> None:
        """Put what people say to a run into its inbox, whether or not somebody posts it too."""
        while True:
            received = await said.get()
            try:
                await self._store.send_message(letter_of(run_id, received, self._ports.clock.now()))
            except (RunError, StorageError, InvalidPayload) as error:
                log.warning("run %s: what was said to it is not heard: %s", run_id, error)

    async def tell(self, turn: TurnRow, end: RunEnd, generation: int) -> None:
        """Tell a session how a run ended; what goes wrong is logged, and tried again by a sweep."""
        code = None if end.problem is None else end.problem.code
        try:
            await self._tell(EndedTurn(turn, end.state, generation, code))
        except (SessionError, StorageError) as error:
            log.warning("run %s: its session hears of its end later: %s", turn.run_id, error)
        except Exception:  # noqa: BLE001 - the run has ended, and is not to be given back
            log.exception("run %s: its session hears of its end later", turn.run_id)

    async def sweep(self) -> int:
        """Tell sessions of the ends that they have not heard of, some of them; return how many.

        Idempotent and safe to call from any number of workers. Raises a `StorageError`.
        """
        told = 0
        found = await self._store.ended_turns(_MOST_TOLD, self._swept_to)
        # Sessions that cannot be reached are in nobody's way: each sweep goes on behind the last.
        self._swept_to = found[-1].turn.run_id if len(found) == _MOST_TOLD else ""
        for ended in found:
            try:
                await self._tell(ended)
                told += 1
            except SessionError as error:
                run_id = ended.turn.run_id
                log.warning("run %s: its session hears of its end later: %s", run_id, error)
        return told

    async def _tell(self, ended: EndedTurn) -> None:
        turn = ended.turn
        async with self._session(turn, None) as session:
            if await self._is_asked(session, turn):
                _, info = _latest(session, turn.run_id)
                if info is None or info.lifecycle.status not in ENDS:
                    # What cancels it has come to its end as well, or too late.
                    run = await _open(session, turn, ended.generation, on_cancel=_refuse)
                    status = _STATUS[ended.state]
                    await run.end_steps(status)
                    await run.end(status, error=_fault(ended))
        await self._store.close_turn(turn.run_id, ended.generation)

    async def _is_asked(self, session: AgentSession, turn: TurnRow) -> bool:
        """Return whether what a turn answers is in its session still; where it is not, tell so."""
        try:
            await session.find_input(_asked(turn), _TOLD_SECONDS)
        except RunNotObserved as error:
            if error.__cause__ is not None:
                raise  # history cannot be read now
            self._ports.observer.count("perdure_session_unshown_total")
            log.error("run %s is not seen by anybody: %s", turn.run_id, error)
            return False
        return True

    def _session(self, turn: TurnRow, fence: Fence | None) -> AgentSession:
        assert self._ports.channels is not None
        channel = self._ports.channels.channel(turn.session, AGENT, fence)
        return AgentSession(
            channel,
            UiMessageCodec(),
            clock=self._ports.clock,
            on_error=lambda error: log.warning("session %s: %s", turn.session, error),
        )


async def _open(
    session: AgentSession,
    turn: TurnRow,
    generation: int,
    *,
    on_steer: OnSteer | None = None,
    on_cancel: OnCancel | None = None,
) -> AgentRun:
    """Return the run of a turn, open where it stands: to be begun, under way, or suspended.

    One that is begun again shows what had been shown before, and goes on with that.
    """
    number, info = _latest(session, turn.run_id)
    if info is not None and info.lifecycle.status in ENDS:
        number, info = number + 1, None
    run_id = _named(turn.run_id, number)
    listening: dict[str, Any] = {"on_steer": on_steer, "on_cancel": on_cancel}
    run = await _opened(session, turn, run_id, info, generation, listening)
    if number > 1:
        await show_again(session, run, _named(turn.run_id, number - 1))
    return run


async def _opened(
    session: AgentSession,
    turn: TurnRow,
    run_id: str,
    info: RunInfo | None,
    generation: int,
    listening: dict[str, Any],
) -> AgentRun:
    asked = _asked(turn)
    if info is not None and info.lifecycle.status is RunStatus.ACTIVE:
        known = info.goes_on_as
        run = session.adopt_run(run_id=run_id, invocation_id=known, trigger=asked, **listening)
        await run.load()
        return run
    said, invocation_id = asked, run_id
    if info is not None:
        said, invocation_id = session.last_said(run_id) or asked, f"{run_id}~{generation}"
    run = session.create_run(said, run_id=run_id, invocation_id=invocation_id, **listening)
    await run.start()
    return run


async def _refuse(request: CancelRequest) -> bool:
    del request
    return False


def _asked(turn: TurnRow) -> SessionInvocation:
    return SessionInvocation(turn.event_id, turn.session)


def _fault(ended: EndedTurn) -> StreamFailed | None:
    """Return what a session is told of a failure: its kind; the rest may be nobody's business."""
    failed = ended.state is RunState.FAILED
    return StreamFailed(f"the run failed: {ended.problem_code or 'Error'}") if failed else None


def _latest(session: AgentSession, run_id: str) -> tuple[int, RunInfo | None]:
    """Return what a session has of a run, and how often it was begun there; from 1.

    A run that failed and was resumed by a person is begun again: the first one has ended.
    """
    number, latest = 1, _begun(session, run_id)
    while (again := _begun(session, _named(run_id, number + 1))) is not None:
        number, latest = number + 1, again
    return number, latest


def _begun(session: AgentSession, run_id: str) -> RunInfo | None:
    """Return a run that has started or ended; what is said to one before it starts is no sign."""
    info = session.find_run(run_id)
    known = info is not None and (info.goes_on_as or info.lifecycle.status in ENDS)
    return info if known else None


def _named(run_id: str, number: int) -> str:
    return run_id if number == 1 else f"{run_id}.{number}"
