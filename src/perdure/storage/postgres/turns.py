from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.engine.store import RunState
from perdure.engine.turns import EndedTurn, TurnRow
from perdure.storage.postgres.database import Database


class PostgresTurns:
    """Which runs are turns of sessions, in one PostgreSQL schema."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def note_turn(self, turn: TurnRow) -> None:
        """Write that a run is a turn, and that its session is to hear how it ends.

        Durable when it returns: the note, fsynced.
        """
        row = msgspec.structs.asdict(turn)
        await self._db.write("note_turn", row, f"note_turn {turn.run_id}")

    async def read_turn(self, run_id: str) -> TurnRow | None:
        """Return what a run answers, or None where it is no turn or was erased."""
        row = await self._db.read_row("read_turn", run_id=run_id)
        return None if row is None else TurnRow(*row)

    async def list_turns(self, session: str) -> Sequence[TurnRow]:
        """Return the turns of a session."""
        rows = await self._db.read("list_turns", session=session)
        return [TurnRow(*row) for row in rows]

    async def ended_turns(self, limit: int, after: str = "") -> Sequence[EndedTurn]:
        """Return turns whose run has ended and whose session has not heard of it, up to a limit."""
        rows = await self._db.read("ended_turns", limit=limit, after=after)
        return [EndedTurn(TurnRow(*row[:3]), RunState(row[3]), *row[4:]) for row in rows]

    async def close_turn(self, run_id: str, generation: int) -> None:
        """Note that a session has heard how a run ended, unless the run goes on since.

        Durable when it returns: the note, fsynced.
        """
        row = {"run_id": run_id, "generation": generation}
        await self._db.write("close_turn", row, f"close_turn {run_id}")
