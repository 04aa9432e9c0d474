from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from perdure.errors import InvalidOptions, MissingExtra

try:
    from cronsim import CronSim, CronSimError
except ModuleNotFoundError as error:
    if error.name != "cronsim":
        raise
    raise MissingExtra(
        "cron schedules need their extra: pip install 'perdure[schedules]'"
    ) from error

_FIELDS: Final = 5

# Backwards, fewer ticks may be seen than forwards where clocks are set.
_MARGIN: Final = 10


class Cron:
    """Ticks as a line of cron says, by the clocks of a time zone.

    Where clocks are set, it does what cron does on Debian. A line that names minute and hour ticks
    once a day: what falls into the hour that is left out, at the first instant after it, and what
    falls into the doubled hour, the first time. A line whose minute or hour begins with `*` goes by
    the time that passes: nothing in the hour that is left out, and both times in the doubled one.

    Raises `InvalidOptions` for what is no line of cron, never ticks, or is no time zone.
    """

    def __init__(self, line: str, zone: str = "UTC") -> None:
        self._line = " ".join(line.split())
        self._zone = _zone(zone)
        self.text = f"{self._line} ({zone})"
        if len(self._line.split()) != _FIELDS:
            raise InvalidOptions(
                f"{line!r} is no cron schedule: it has five fields, which are minute, hour, day of"
                " the month, month and day of the week, such as '0 9 * * mon-fri'"
            )
        try:
            never = next(self._from(0), None) is None
        except CronSimError as error:
            raise InvalidOptions(f"{line!r} is no cron schedule: {error}") from error
        if never:
            raise InvalidOptions(f"the cron schedule {line!r} never ticks")

    def after(self, instant: int) -> Iterator[int]:
        """Return the ticks after an instant, ascending."""
        # By the clocks of the zone, the second pass of a doubled hour begins before the first ends.
        return (tick for tick in self._from(instant) if tick > instant)

    def left(self, instant: int, until: int, count: int) -> int:
        """Return an instant after which `count` ticks come until another one."""
        if count == 0:
            return max(instant, until)
        back = self._back(until, count + _MARGIN)
        ticks = [*takewhile(lambda tick: tick <= until, self.after(max(instant, back)))]
        return ticks[-count - 1] if len(ticks) > count else instant

    def _from(self, instant: int) -> Iterator[int]:
        for tick in CronSim(self._line, datetime.fromtimestamp(instant, self._zone)):
            yield int(tick.timestamp())

    def _back(self, until: int, count: int) -> int:
        """Return an instant before the `count` last ticks, and not long before them."""
        ticks = CronSim(self._line, datetime.fromtimestamp(until + 1, self._zone), reverse=True)
        back = until
        for tick in islice(ticks, count):
            back = min(back, int(tick.timestamp()))
        return back - 1


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidOptions(
            f"{name!r} is no time zone that this machine knows; write one such as 'Europe/Berlin',"
            " and where there are none at all, pip install tzdata"
        ) from error
