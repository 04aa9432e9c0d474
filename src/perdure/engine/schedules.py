from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

CatchUp: TypeAlias = Literal["skip", "one", "all"]
"""What becomes of ticks that were missed: none has a run, all have one together, or each one."""

LATE_SECONDS: Final = 60
"""How late a tick may be noticed that is not missed, if no other is due after it."""

BACKLOG: Final = 1000
"""How many missed ticks have runs at most; older ones never have."""

_BATCH: Final = 50


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule as it stands.

    `rule` is when it ticks and `function` what a tick starts, as the App that was opened last
    declares them. Instants are whole seconds since the epoch, UTC. All ticks until `counted_to`
    have their run, or never will. `next_at` is the next tick, None while the schedule is paused
    and for who does not declare it.
    """

    name: str
    function: str
    rule: str
    counted_to: int
    paused: bool
    next_at: int | None = None


class ScheduleStore(Protocol):
    """The port that keeps how far the ticks of schedules have come."""

    async def declare_schedule(self, name: str, function: str, rule: str, now: int) -> None:
        """Write a schedule that counts its ticks from now on, unless it is there.

        One that is there gets the function and the rule, and counts from where it was.
        Durable when it returns: the schedule, fsynced.
        """
        ...

    async def list_schedules(self) -> Sequence[ScheduleRow]:
        """Return the schedules, by name."""
        ...

    async def count_ticks(self, seen: ScheduleRow, counted_to: int) -> bool:
        """Note that all ticks until an instant are dealt with; return whether it could be noted.

        It cannot where somebody has counted on, paused the schedule or given it another rule since
        it was seen.
        Durable when it returns: the note, fsynced.
        """
        ...

    async def pause_schedule(self, name: str) -> bool:
        """Let a schedule start nothing until it is resumed; return whether there is one.

        Durable when it returns: the pause, fsynced.
        """
        ...

    async def resume_schedule(self, name: str, now: int) -> bool:
        """Let a paused schedule count its ticks from now on; return whether there is one.

        One that is not paused stays as it is. Durable when it returns: the resumption, fsynced.
        """
        ...


class Rule(Protocol):
    """When a schedule ticks, at whole seconds; `text` is how it is stored, and names it."""

    @property
    def text(self) -> str:
        """What tells one rule from another."""
        ...

    def after(self, instant: int) -> Iterator[int]:
        """Return the ticks after an instant, ascending, when the ticks until then are counted."""
        ...

    def left(self, instant: int, until: int, count: int) -> int:
        """Return an instant to count from after which `count` ticks come until another one.

        Not before `instant`, from which ticks are counted now.
        """
        ...


class Interval(msgspec.Struct, frozen=True):
    """Ticks every so many seconds, counted from the last tick, so that nothing adds up."""

    seconds: int

    @property
    def text(self) -> str:
        """Such as `every 10 s`."""
        return f"every {self.seconds} s"

    def after(self, instant: int) -> Iterator[int]:
        """Return the ticks after the one at `instant`."""
        while True:
            instant += self.seconds
            yield instant

    def left(self, instant: int, until: int, count: int) -> int:
        """Return the tick after which `count` ticks come until an instant."""
        due = (until - instant) // self.seconds
        return instant + max(0, due - count) * self.seconds


class Plan(msgspec.Struct, frozen=True):
    """What to do about a schedule: the ticks that get runs, and until when all are dealt with.

    `dropped` says that some of them will never have a run.
    """

    ticks: Sequence[int]
    counted_to: int
    dropped: bool = False


def plan(rule: Rule, catch_up: CatchUp, counted_to: int, now: int) -> Plan | None:
    """Return what to do about the ticks that are due, or None when none is.

    One that is due alone, and not for long, is on time. Otherwise all that are due were missed.
    """
    due = _due(rule, counted_to, now, BACKLOG + 1)
    if not due:
        return None
    if len(due) == 1 and now - due[0] <= LATE_SECONDS:
        return Plan(due, due[0])
    match catch_up:
        case "skip":
            return Plan((), rule.left(counted_to, now, 0), dropped=True)
        case "one":
            # The newest: whoever decides again, after a crash, finds the same or a later tick.
            newest = _due(rule, rule.left(counted_to, now, 1), now, 1) or due[-1:]
            return Plan(newest, newest[0])
        case "all":
            dropped = len(due) > BACKLOG
            if dropped:
                due = _due(rule, rule.left(counted_to, now, BACKLOG), now, BACKLOG)
            batch = due[:_BATCH]
            return Plan(batch, batch[-1], dropped=dropped)


def tick_id(name: str, instant: int) -> str:
    """Return the id of the run of a tick, such as `schedule.report.20261130T080000Z`."""
    return f"schedule.{name}.{datetime.fromtimestamp(instant, UTC):%Y%m%dT%H%M%SZ}"


def _due(rule: Rule, counted_to: int, now: int, limit: int) -> list[int]:
    return [*islice(takewhile(lambda tick: tick <= now, rule.after(counted_to)), limit)]
