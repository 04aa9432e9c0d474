from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from perdure.activity import this_task
from perdure.declaration import Reported, Verdict
from perdure.journal.failures import failure_of
from perdure.journal.record import Outcome, Success
from perdure.journal.store import NewRecord
from perdure.ports import Handler
from perdure.wording import text_of

_CANCELLED: Final = asyncio.CancelledError.__name__


class Attempt(msgspec.Struct, frozen=True):
    """What an attempt of an operation came to, and the exception, if it raised one.

    `verdict` is what the handler said of its effect, and `why` in which words; None when its
    outcome has to tell. `record` is what was written along with the receipt; None when the outcome
    is still to be recorded.
    """

    outcome: Outcome
    error: Exception | None = None
    verdict: Verdict | None = None
    why: str = ""
    record: NewRecord | None = None


class _StandIn(Exception):
    """Stands for what is no `Exception`, and yet only says how an attempt ended."""


def stand_in(name: str, text: str) -> Exception:
    """Return an exception of a type that is called like what it stands for."""
    return type(name, (_StandIn,), {})(text)


async def make_attempt(handler: Handler) -> Attempt:
    """Call a handler once and return what it came to, an exception included.

    A `CancelledError` that it raises although nobody cancelled this task is an exception like any
    other. Where somebody did, that is raised, unless the handler came to an outcome all the same:
    what it makes of its cancellation says nothing about the operation.
    """
    task = this_task()
    cancellations = task.cancelling()
    raised: BaseException | None
    try:
        made = _reported(await handler())
        raised = made.error
    except asyncio.CancelledError as error:
        if task.cancelling() > cancellations:
            raise
        raised = error
        made = Attempt(failure_of(error), stand_in(_CANCELLED, text_of(error)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again, or recorded
        raised = error
        made = Attempt(failure_of(error), error if isinstance(error, Exception) else None)
    if raised is not None and task.cancelling() > cancellations:
        raise asyncio.CancelledError from raised
    return made


def _reported(told: Outcome | Reported) -> Attempt:
    if isinstance(told, Reported):
        return Attempt(told.outcome, told.error, told.verdict, told.why)
    # An outcome that no record can hold becomes a failure, and was applied all the same.
    return Attempt(told, verdict=Verdict.APPLIED if isinstance(told, Success) else None)
