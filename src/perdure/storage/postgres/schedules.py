from __future__ import annotations

from collections.abc import Sequence

from perdure.engine.schedules import ScheduleRow
from perdure.storage.postgres.database import Database


class PostgresSchedules:
    """What starts runs by the clock, in one PostgreSQL schema."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def declare_schedule(self, name: str, function: str, rule: str, now: int) -> None:
        """Write a schedule that counts its ticks from now on, or the new rule of one there.

        Durable when it returns: the schedule, fsynced.
        """
        row = {"name": name, "function": function, "rule": rule, "now": now}
        await self._db.write("declare_schedule", row, f"declare_schedule {name}")

    async def list_schedules(self) -> Sequence[ScheduleRow]:
        """Return the schedules, by name."""
        return [ScheduleRow(*row) for row in await self._db.read("list_schedules")]

    async def count_ticks(self, seen: ScheduleRow, counted_to: int) -> bool:
        """Note until when ticks are dealt with, if the schedule stands as it was seen.

        After a lost answer, that this note was written already is told as if somebody else's was.

        Durable when it returns: the note, fsynced.
        """
        row = {
            "name": seen.name,
            "seen": seen.counted_to,
            "rule": seen.rule,
            "counted_to": counted_to,
        }
        return bool(await self._db.write("count_ticks", row, f"count_ticks {seen.name}"))

    async def pause_schedule(self, name: str) -> bool:
        """Let a schedule start nothing; return whether there is one.

        Durable when it returns: the pause, fsynced.
        """
        return bool(
            await self._db.write("pause_schedule", {"name": name}, f"pause_schedule {name}")
        )

    async def resume_schedule(self, name: str, now: int) -> bool:
        """Let a paused schedule count its ticks from now on; return whether there is one.

        Durable when it returns: the resumption, fsynced.
        """
        row = {"name": name, "now": now}
        return bool(await self._db.write("resume_schedule", row, f"resume_schedule {name}"))
