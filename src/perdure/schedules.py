from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

from perdure.codec import Codec
from perdure.engine.registry import NOTHING, Function, Registry
from perdure.engine.schedules import CatchUp, Interval, Rule, ScheduleRow
from perdure.engine.timetable import Schedule
from perdure.errors import InvalidInvocation, InvalidOptions, UnknownSchedule
from perdure.ids import check_identifier

if TYPE_CHECKING:
    from perdure.engine.engine import Engine

_NAME_CHARACTERS: Final = 64


class Schedules(ABC):
    """Runs that start by the clock."""

    _codec: Codec
    _registry: Registry

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the open App; raises `EngineClosed` when it is not open."""

    def schedule(
        self,
        function: Function | str,
        *,
        cron: str | None = None,
        every_seconds: int | None = None,
        timezone: str | None = None,
        catch_up: CatchUp = "one",
        name: str | None = None,
        input: Any = NOTHING,  # noqa: A002
    ) -> None:
        """Have a registered run function started by the clock: once a tick, by any worker of it.

        `cron` is a line of five fields such as `0 9 * * mon-fri`, by the clocks of `timezone`
        (UTC); it needs the extra `schedules`. `every_seconds` is a whole number instead, counted
        from the last tick, and at first from when a worker first sees the schedule. `catch_up` says
        what becomes of ticks at which no worker was there: `skip` drops them, `one` starts one run
        for all of them, and `all` one for each of the newest 1,000. `name` (default: the
        function's) is what the store knows the schedule by, so it stays the same when the rest
        changes. Each run gets `input` and has an id made of the name and the instant of its tick.

        Raises `InvalidOptions`, `UnknownFunction`, `InvalidPayload` for the input, or
        `MissingExtra`.
        """
        by_name = isinstance(function, str)
        registered = self._registry.find(function) if by_name else self._registry.of(function)
        if catch_up not in get_args(CatchUp):
            known = ", ".join(map(repr, get_args(CatchUp)))
            raise InvalidOptions(f"catch_up is one of {known}, not {catch_up!r}")
        encoded = self._codec.encode(
            registered.input_of(input), what="input", function=registered.function
        )
        rule = _rule(cron, every_seconds, timezone)
        name = _checked(registered.name if name is None else name)
        self._registry.timetable.add(Schedule(name, registered.name, encoded, rule, catch_up))

    async def schedules(self) -> Sequence[ScheduleRow]:
        """Return the schedules that the store knows, by name, also those that nobody declares."""
        return self._registry.timetable.foresee(await self.engine.store.list_schedules())

    async def pause_schedule(self, name: str) -> None:
        """Let a schedule start nothing until it is resumed, also when workers start anew.

        What has been started goes on, and a tick that a worker deals with just now may still start.

        Durable when it returns: the pause, fsynced. Raises `UnknownSchedule`.
        """
        if not await self.engine.store.pause_schedule(name):
            raise UnknownSchedule(name)

    async def resume_schedule(self, name: str) -> None:
        """Let a paused schedule go on; its ticks until now are dropped, whatever `catch_up` says.

        Durable when it returns: the resumption, fsynced. Raises `UnknownSchedule`.
        """
        store = self.engine.store
        if not await store.resume_schedule(name, int(store.clock.now())):
            raise UnknownSchedule(name)


def _rule(cron: str | None, every_seconds: int | None, timezone: str | None) -> Rule:
    if (cron is None) == (every_seconds is None):
        raise InvalidOptions("a schedule has either cron= or every_seconds=")
    if every_seconds is None:
        edge = importlib.import_module("perdure.adapters.cron")
        rule: Rule = edge.Cron(cron, "UTC" if timezone is None else timezone)
        return rule
    if timezone is not None:
        raise InvalidOptions("every_seconds counts seconds, which are the same in every timezone")
    if type(every_seconds) is not int or every_seconds < 1:
        raise InvalidOptions(f"every_seconds is a whole number from 1, not {every_seconds!r}")
    return Interval(every_seconds)


def _checked(name: str) -> str:
    try:
        check_identifier(name, "schedule's name")
    except InvalidInvocation as error:
        raise InvalidOptions(str(error)) from error
    if len(name) > _NAME_CHARACTERS:
        raise InvalidOptions(f"a schedule's name has at most {_NAME_CHARACTERS} characters")
    return name
