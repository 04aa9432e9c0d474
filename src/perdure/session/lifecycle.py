from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from perdure.errors import StreamFailed
from perdure.session import headers
from perdure.session.message import WireMessage


class RunStatus(StrEnum):
    """Where a run stands. The last three are ends."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    ERROR = "error"


ENDS: Final = frozenset({RunStatus.COMPLETE, RunStatus.CANCELLED, RunStatus.ERROR})


class RunFault(msgspec.Struct, frozen=True):
    """Why a run ended in `error`; `code` and `status` are of the table of session errors."""

    code: int
    status: int
    message: str


class Lifecycle(msgspec.Struct, frozen=True):
    """What the events of a run's life come to; `end_serial` is of the last suspension or end."""

    status: RunStatus = RunStatus.ACTIVE
    fault: RunFault | None = None
    end_serial: str | None = None


def read_lifecycle(events: Iterable[WireMessage]) -> Lifecycle:
    """Return where a run stands after its events, which are in the order of their serials.

    The rules, of the wire's own reader: starts and resumptions wake a suspended run and nothing
    else; a suspension by an invocation that another has taken over from is void; the last end
    counts. An end counts whether or not a start was seen, since that may stand further back.
    """
    life = Lifecycle()
    resumed_by = ""
    for event in events:
        invocation = event.header(headers.INVOCATION_ID)
        match event.name:
            case headers.AI_RUN_START | headers.AI_RUN_RESUME:
                if event.name == headers.AI_RUN_RESUME:
                    resumed_by = invocation or resumed_by
                if life.status is RunStatus.SUSPENDED:
                    life = msgspec.structs.replace(life, status=RunStatus.ACTIVE)
            case headers.AI_RUN_SUSPEND:
                if not (resumed_by and invocation and resumed_by != invocation):
                    life = Lifecycle(RunStatus.SUSPENDED, end_serial=event.serial)
            case headers.AI_RUN_END:
                life = _ended(event)
            case _:
                pass
    return life


def _ended(event: WireMessage) -> Lifecycle:
    """Return how an end says that the run went; what no reader knows is no success."""
    reason = event.header(headers.RUN_REASON) or RunStatus.COMPLETE
    if reason in (RunStatus.COMPLETE, RunStatus.CANCELLED):
        return Lifecycle(RunStatus(reason), end_serial=event.serial)
    return Lifecycle(RunStatus.ERROR, _fault(event), event.serial)


def _fault(event: WireMessage) -> RunFault:
    """Return the error of an end, with what stands for a code or a message that is not there."""
    said = event.header(headers.ERROR_CODE)
    code = int(said) if said.isascii() and said.isdigit() and len(said) < 10 else StreamFailed.code
    status = code // 100 if 10_000 <= code < 60_000 else StreamFailed.status
    known = event.transport or {}
    return RunFault(code, status, known.get(headers.ERROR_MESSAGE, "agent reported an error"))
