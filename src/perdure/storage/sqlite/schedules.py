from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.engine.schedules import ScheduleRow
from perdure.storage.sqlite.database import Database


class SqliteSchedules:
    """What starts runs by the clock, in one SQLite file."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def declare_schedule(self, name: str, function: str, rule: str, now: int) -> None:
        """Write a schedule that counts its ticks from now on, or the new rule of one there.

        Durable when it returns: the schedule, fsynced.
        """
        row = {"name": name, "function": function, "rule": rule, "now": now}
        await self._change_schedule("declare_schedule", row)

    async def list_schedules(self) -> Sequence[ScheduleRow]:
        """Return the schedules, by name."""
        rows = self._db.read("list_schedules")
        return [ScheduleRow(*row[:-1], paused=bool(row[-1])) for row in rows]

    async def count_ticks(self, seen: ScheduleRow, counted_to: int) -> bool:
        """Note until when ticks are dealt with, if the schedule stands as it was seen.

        Durable when it returns: the note, fsynced.
        """
        row = {
            "name": seen.name,
            "seen": seen.counted_to,
            "rule": seen.rule,
            "counted_to": counted_to,
        }
        return await self._change_schedule("count_ticks", row)

    async def pause_schedule(self, name: str) -> bool:
        """Let a schedule start nothing; return whether there is one.

        Durable when it returns: the pause, fsynced.
        """
        return await self._change_schedule("pause_schedule", {"name": name})

    async def resume_schedule(self, name: str, now: int) -> bool:
        """Let a paused schedule count its ticks from now on; return whether there is one.

        Durable when it returns: the resumption, fsynced.
        """
        return await self._change_schedule("resume_schedule", {"name": name, "now": now})

    async def _change_schedule(self, query: str, row: Mapping[str, Any]) -> bool:
        return await self._db.write(
            lambda connection: self._db.run(connection, query, row).rowcount == 1,
            f"{query} {row['name']}",
        )
