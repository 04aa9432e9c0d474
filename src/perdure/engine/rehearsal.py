from __future__ import annotations

import asyncio
import enum
from typing import Final

import msgspec

from perdure.asked import Asked
from perdure.asked_effect import key_of
from perdure.declaration import EffectDeclaration
from perdure.engine.execution import Execution
from perdure.engine.registry import Registry
from perdure.engine.store import ClaimedRun, RunEnd, RunProblem, RunRow, RunState, RunStore
from perdure.engine.strays import Strays
from perdure.errors import (
    EffectConflict,
    InvalidPayload,
    KeyUnavailable,
    PerdureError,
    ReplayMismatch,
    RunStopped,
    StorageCorrupt,
    UnaskedOperation,
    UnknownFunction,
)
from perdure.fence import Fence
from perdure.journal.store import TimerRow
from perdure.observe import Observer
from perdure.perform import Performer
from perdure.ports import Handler, Ports
from perdure.recorder import Performed
from perdure.retry import RetryPolicy
from perdure.waits import Wait
from perdure.wording import printable

_QUIET_TURNS: Final = 50
"""Of the loop, in which nothing was replayed any more."""

_DISAGREEMENTS: Final = frozenset(
    kind.__name__ for kind in (EffectConflict, InvalidPayload, ReplayMismatch, UnaskedOperation)
)
"""What parks a run because code and journal disagree."""


class Verdict(enum.StrEnum):
    """What a rehearsal of a run found."""

    MATCHES = "matches"
    """The code asks for what the journal holds, and comes to the same end."""

    GOES_ON = "goes_on"
    """The code asks for what the journal holds, and then for more, as the run would do next."""

    DIFFERS = "differs"
    """The code asks for something else, or comes to another end: the run would be parked."""

    UNSERVED = "unserved"
    """No function of the run's name and version is registered."""

    UNREADABLE = "unreadable"
    """What is stored of the run cannot be read, or not by this process."""


class Rehearsed(msgspec.Struct, frozen=True):
    """What a rehearsal found, in how many of the recorded operations, and why.

    `ended` tells whether the run is over.
    """

    run_id: str
    function: str
    version: int
    verdict: Verdict
    replayed: int
    recorded: int
    ended: bool
    reason: str = ""


class _Everybody:
    """Owns every run: nothing is written, so nobody can be overtaken."""

    def check(self, run_id: str) -> None:
        """Confirm."""
        del run_id


class _Replayer(Performer):
    """Answers operations from the journal, and stops where there is nothing left to answer."""

    frontier: str | None = None

    async def _execute(
        self,
        asked: Asked,
        handler: Handler,
        retry: RetryPolicy | None,
        effect: EffectDeclaration | None,
    ) -> Performed:
        del handler, retry
        if (begun := self._begun.get(asked.place)) and begun != key_of(asked.invocation, effect):
            raise self._parked(asked, EffectConflict(begun, "here under another name or target"))
        raise await self._stop(asked)

    async def _begin_wait(
        self, asked: Asked, wake_at: float | None, wait: Wait | None = None
    ) -> TimerRow:
        del wake_at, wait
        raise await self._stop(asked)

    async def _wait(self, asked: Asked, timer: TimerRow) -> None:
        del timer
        raise await self._stop(asked)

    async def _receive(self, asked: Asked, wait: Wait, wake_at: float | None) -> Performed:
        del wait, wake_at
        raise await self._stop(asked)

    async def _stop(self, asked: Asked) -> RunStopped:
        if self.frontier is None:
            self.frontier = asked.invocation.stable_key
        # What runs beside it may be cancelled for it, and has recorded operations to ask for.
        quiet = 0
        while quiet < _QUIET_TURNS:
            replayed = self.replayed
            await asyncio.sleep(0)
            quiet = quiet + 1 if replayed == self.replayed else 0
        return RunStopped(self.fence.run_id)


async def rehearse(store: RunStore, registry: Registry, ports: Ports, row: RunRow) -> Rehearsed:
    """Call a run's function with what the run recorded, and say whether code and journal agree.

    No operation is performed and nothing is written: where the journal has no answer, the code is
    stopped. What a run function does past its context, it does here as well.
    """
    journal = await store.read_journal(row.run_id)
    recorded = len(journal.rows)
    try:
        function = registry.find(row.function, row.version)
    except UnknownFunction as error:
        return _found(row, Verdict.UNSERVED, 0, recorded, str(error))
    claim = ClaimedRun(
        Fence(row.run_id, row.holder or "rehearsal", row.generation + 1),
        row.function,
        row.version,
        await store.read_run_input(row.run_id),
        row.started_at or row.created_at,
        recovered=True,
    )
    # Nobody counts what is only rehearsed.
    quiet = msgspec.structs.replace(ports, observer=Observer())
    performer = _Replayer(claim.fence, journal, quiet, _Everybody())
    execution = Execution(claim, function)
    async with Strays() as strays:
        end = await execution.run(performer)
        await strays.end()
    verdict, reason = _judge(row, end, performer, await performer.unfinished())
    return _found(row, verdict, performer.replayed, recorded, reason)


def _at_frontier(row: RunRow, frontier: str, left: PerdureError | None) -> tuple[Verdict, str]:
    """Judge code that asks for something that was not recorded."""
    if row.state is RunState.COMPLETED:
        return Verdict.DIFFERS, f"it asks for {frontier}, which the completed run did not"
    if left is not None:
        return Verdict.DIFFERS, f"it asks for {frontier} before it asks for all that was recorded"
    return Verdict.GOES_ON, f"up to {frontier}"


def _judge(
    row: RunRow, end: RunEnd | None, performer: _Replayer, left: PerdureError | None
) -> tuple[Verdict, str]:
    if end is not None and end.state is RunState.NEEDS_ATTENTION:
        if isinstance(end.cause, KeyUnavailable | StorageCorrupt):
            return Verdict.UNREADABLE, _said(row, end)
        if _code(end.problem) in _DISAGREEMENTS:
            return Verdict.DIFFERS, _said(row, end)
    if performer.frontier is not None:
        return _at_frontier(row, performer.frontier, left)
    if end is None or (not row.state.ended and end.state is RunState.COMPLETED):
        return Verdict.GOES_ON, "to its end"
    return _compared(row, end)


def _compared(row: RunRow, end: RunEnd) -> tuple[Verdict, str]:
    """Judge code that came to an end by the end that the run came to."""
    if end.state is not row.state:
        said = f": {_said(row, end)}" if end.problem is not None else ""
        return Verdict.DIFFERS, f"it is {end.state.value} and was {row.state.value}{said}"
    now, before = _code(end.problem), _code(row.problem)
    if now != before:
        was = f"it is {end.state.value} by {now} and was by {before}"
        return Verdict.DIFFERS, f"{was}: {_said(row, end)}"
    same = end.output_json == row.output_json
    return (Verdict.MATCHES, "") if same else (Verdict.DIFFERS, "it returns another result")


def _code(problem: RunProblem | None) -> str:
    return "nothing" if problem is None else problem.code


def _said(row: RunRow, end: RunEnd) -> str:
    """Return what ended the code, without what to do about it where the run is over."""
    if row.state.ended and isinstance(end.cause, ReplayMismatch | UnaskedOperation):
        return printable(end.cause.finding)
    return "" if end.problem is None else end.problem.message


def unreadable(row: RunRow, why: str) -> Rehearsed:
    """Return what is found of a run that cannot be read."""
    return _found(row, Verdict.UNREADABLE, 0, 0, why)


def _found(row: RunRow, verdict: Verdict, replayed: int, recorded: int, reason: str) -> Rehearsed:
    return Rehearsed(
        row.run_id,
        row.function,
        row.version,
        verdict,
        replayed,
        recorded,
        row.state.ended,
        reason,
    )
