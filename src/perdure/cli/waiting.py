from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.approvals import Approval
from perdure.cli.approval import told
from perdure.cli.naming import name_by
from perdure.cli.sheet import Column, Sheet
from perdure.cli.words import instant, moment
from perdure.engine.store import RunRow, RunState
from perdure.errors import InputDigestMismatch, KeyUnavailable, StorageCorrupt, StorageMissing
from perdure.inbox import Message
from perdure.journal.store import TimerRow

PARKED: Final = frozenset({RunState.SLEEPING, RunState.SUSPENDED})
"""The states of a run that waits while nobody executes it."""

_OVER: Final = frozenset(state for state in RunState if state.settled)
_ITEMS_READ: Final = 1000
_MOST_NAMED: Final = 3
_EVENT: Final = "perdure.external_event"
_OWN: Final = "perdure:"
_COLUMNS: Final = (
    Column("operation", least=16),
    Column("waits for", least=20),
    Column("since (UTC)", dispensable=2),
    Column("until (UTC)", dispensable=1),
    Column("but", least=8, below=True),
)


class Awaited(msgspec.Struct, frozen=True):
    """Something that an operation of a run waits for.

    `what` is what people call it. `since` is None where nobody knows, and `until` where it has no
    end; both are wall seconds, UTC. `awaits` is the name of the message that ends it, or None for
    a time, and `approval` what the run asked for, if that is it. `missing` tells that it has to
    come from outside, and has not come.
    """

    step_id: str
    sequence: int
    handler_id: str
    what: str
    since: float | None
    until: float | None
    awaits: str | None
    approval: Approval | None
    missing: bool


class Waiting(msgspec.Struct, frozen=True):
    """What a run waits for, all that it asked for, and the messages that reached it.

    `unreadable` is why nobody can say.
    """

    waits: Sequence[Awaited] = ()
    approvals: Sequence[Approval] = ()
    messages: Sequence[Message] = ()
    unreadable: str | None = None

    @property
    def open(self) -> Sequence[Approval]:
        """What nobody has answered yet."""
        return [approval for approval in self.approvals if approval.open]


async def read_waiting(app: App, row: RunRow) -> Waiting:
    """Return what a run waits for, unless it stands still, what it asked for and was sent."""
    if row.tombstone is not None:
        return Waiting()
    try:
        approvals = await app.approvals(row.run_id, open_only=False, limit=_ITEMS_READ)
        messages = await app.store.list_messages(row.run_id)
        timers: Sequence[TimerRow] = ()
        if row.state not in _OVER:
            timers = (await app.store.read_journal(row.run_id)).timers
    except (InputDigestMismatch, KeyUnavailable, StorageCorrupt, StorageMissing) as error:
        return Waiting(unreadable=str(error))
    by_place = {approval.asked_by: approval for approval in approvals}
    come = {message.name for message in messages if message.taken_by is None}
    waits = [
        _awaited(timer, by_place.get((timer.step_id, timer.sequence)), come) for timer in timers
    ]
    waits.sort(key=lambda each: (each.since or float("inf"), each.step_id, each.sequence))
    return Waiting(waits, approvals, messages)


def _awaited(timer: TimerRow, approval: Approval | None, come: AbstractSet[str]) -> Awaited:
    return Awaited(
        timer.step_id,
        timer.sequence,
        timer.handler_id,
        name_by(timer.step_id, timer.kind, timer.handler_id, timer.input_json),
        _since(timer) if approval is None else approval.asked_at,
        timer.wake_at,
        timer.awaits,
        approval,
        missing=timer.awaits is not None and timer.awaits not in come,
    )


class _Limits(msgspec.Struct, frozen=True):
    delay_ms: float | None = None
    timeout_ms: float | None = None


def _since(timer: TimerRow) -> float | None:
    """Return since when a wait goes on, where its input says how long it is."""
    try:
        limits = msgspec.json.decode(timer.input_json, type=_Limits)
    except msgspec.DecodeError:
        return None
    whole = limits.timeout_ms if limits.delay_ms is None else limits.delay_ms
    return None if whole is None or timer.wake_at is None else timer.wake_at - whole / 1000


# --- in words ------------------------------------------------------------------------------------


def standing(row: RunRow, waiting: Waiting) -> str:
    """Return what goes behind the state of a run that nobody executes; empty for any other."""
    if row.state is RunState.PENDING and row.queued is not None:
        return f" in queue {row.queued.queue}"
    if row.state is RunState.SLEEPING:
        return f" until {moment(row.wake_at)}"
    if row.state is not RunState.SUSPENDED:
        return ""
    end = "" if row.wake_at is None else f", until {moment(row.wake_at)} at most"
    return f", waits for {_listed(waiting)}{end}"


def _listed(waiting: Waiting) -> str:
    counts = Counter(each.what for each in waiting.waits if each.missing)
    left = [what if count == 1 else f"{count} x {what}" for what, count in counts.items()]
    if not left:
        return "what comes from outside"
    if len(left) > _MOST_NAMED:
        left = [*left[:_MOST_NAMED], f"{len(left) - _MOST_NAMED} more"]
    return " and ".join(filter(None, [", ".join(left[:-1]), left[-1]]))


def endings(run_id: str, waiting: Waiting, place: str) -> list[str]:
    """Return the commands that end what a run waits for, as lines that say what each means."""
    ways = [way for approval in waiting.open for way in told(approval, place)]
    return ways + [
        _sending(run_id, each, place)
        for each in waiting.waits
        if each.missing and each.awaits is not None and not each.awaits.startswith(_OWN)
    ]


def _sending(run_id: str, each: Awaited, place: str) -> str:
    name, payload, more = each.awaits, "JSON", ""
    if each.handler_id == _EVENT:
        payload, more = """'{"payload": JSON}'""", f" --id {name}"
    return f"perdure send {run_id} {name} {payload}{place}{more}  # JSON is what it says"


# --- for programs and for people -----------------------------------------------------------------


def describe_wait(run_id: str, each: Awaited) -> dict[str, Any]:
    """Return something that a run waits for as a JSON document shows it."""
    return {
        "key": f"{run_id}/{each.step_id}/{each.sequence}",
        "step_id": each.step_id,
        "sequence": each.sequence,
        "name": each.what,
        "message": each.awaits,
        "item_id": None if each.approval is None else each.approval.item_id,
        "since": instant(each.since),
        "until": instant(each.until),
        "missing": each.missing,
    }


def waits_sheet(waits: Sequence[Awaited]) -> Sheet:
    """Return what a run waits for as a table."""
    rows = (
        (
            f"{each.step_id}/{each.sequence}",
            each.what,
            moment(each.since).removesuffix("Z"),
            moment(each.until).removesuffix("Z"),
            "" if each.awaits is None or each.missing else "it has come, and is to be taken",
        )
        for each in waits
    )
    return Sheet("waits", _COLUMNS, rows)
