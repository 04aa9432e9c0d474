from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.activity import Rest
from perdure.engine.dispatch import WaitingRun
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import ClaimedRun, NewRun, RunEnd, RunRow, RunState, StartedRun
from perdure.errors import RunErased, StorageError, UnknownRun
from perdure.fence import Fence
from perdure.storage.listing import Listing
from perdure.storage.pieces import Split, carve
from perdure.storage.places import input_of, output_of, run_named
from perdure.storage.queue_places import Turns
from perdure.storage.rows import (
    MOST_WOKEN,
    fence_row,
    first_claim,
    parked_row,
    served_names,
    started,
)
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.pieces import keep, lifted
from perdure.storage.sqlite.queues import SqliteQueues


class SqliteRuns(SqliteQueues):
    """The runs of one SQLite file and their claims."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._turns = Turns()

    async def start_run(self, run: NewRun, holder: str | None) -> StartedRun:
        """Write a run unless its id exists; with `holder`, claim it in the same transaction.

        Durable when it returns: the run and its claim, fsynced.
        If it raises: a `StorageError`, and nothing was written.
        """
        await self._db.note_key()
        (whole,) = await lifted(self._db, carve(run.input_json))

        def job(connection: sqlite3.Connection) -> tuple[bool, dict[str, Any]]:
            owner = self._standing(connection, holder if run.queued is None else None)
            row = self._db.rows.new_run(run, owner, whole)
            if whole.cuts and self._db.run(connection, "read_run", row).fetchone() is not None:
                return False, row  # before there are pieces that nothing would need
            row["input_piece"] = keep(connection, self._db.sql, self._db.rows, whole)
            inserted = self._db.run(connection, "insert_run", row)
            if inserted.rowcount == 1 and owner is not None:
                self._note_claim(connection, inserted.lastrowid, 1, owner, run.created_at)
            return inserted.rowcount == 1, row

        created, row = await self._db.write(job, "start_run")
        if not created:
            existing = await self.read_run(run.run_id)
            assert existing is not None
            return StartedRun(existing, created=False, claimed=None)
        claimed = None
        if row["holder"] is not None:
            assert holder is not None
            fence = Fence(run.run_id, holder, 1)
            claimed = first_claim(fence, run, row)
        return StartedRun(started(run, row), created=True, claimed=claimed)

    async def claim_runs(
        self,
        holder: str,
        served: Sequence[tuple[str, int]],
        limit: int,
        only: Sequence[str] | None = None,
        *,
        queue: str | None = None,
    ) -> Sequence[ClaimedRun]:
        """Take up to `limit` waiting runs that are served, oldest first; of `only`, if given.

        With a `queue`, of that alone.

        Durable when it returns: the claims, fsynced.
        """
        names = _json(served_names(served))
        ids = None if only is None else _json(only)
        ((plain, queued),) = self._db.read("any_waiting", served=names, only=ids)
        row = {"holder": holder, "served": names, "only": ids, "asked": queue}
        found: list[Any] = []
        plain = plain and queue is None
        for name in self._turns.order(plain=bool(plain), queued=bool(queued)):
            if len(found) < limit:
                found += await self._claim_waiting(name, {**row, "limit": limit - len(found)})
        claims: list[ClaimedRun] = []
        for _, run_id, generation, *facts in found:
            function, version, started_at, deadline_at, parent, *stored = facts
            fence = Fence(run_id, holder, generation)
            input_json, unreadable = await self._given((run_id, function, version), *stored)
            claims.append(
                ClaimedRun(
                    fence,
                    function,
                    version,
                    input_json,
                    started_at,
                    recovered=generation > 1,
                    unreadable=unreadable,
                    deadline_at=deadline_at,
                    parent=parent,
                )
            )
        return claims

    async def end_run(self, fence: Fence, end: RunEnd) -> RunState:
        """Write how a run ended, give up its ownership, and return the state that it has now.

        A run that would need attention is cancelled instead where somebody asked for that, and
        waits for a worker where the effect that it would wait for was settled meanwhile.

        Durable when it returns: the end, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        whole = None
        if end.output_json is not None:
            (whole,) = await lifted(self._db, carve(end.output_json))
        row = self._db.rows.run_end(fence, end, self._db.clock.now(), whole)
        state = await self._give_up("end_run", row, whole)
        if state is None:
            raise self._db.fenced_off(fence.run_id)
        return RunState(state)

    async def release_run(self, fence: Fence, *, locked: bool = False) -> None:
        """Give a run back unfinished, for any worker to go on with.

        Its attempt was `released`, or `locked` where this process lacks a key that it takes.
        Durable when it returns: the release, fsynced. Does nothing when the fence does not hold.
        """
        row = {
            **fence_row(fence),
            "ending": "locked" if locked else "released",
            "executed": 0,
            "replayed": 0,
            "now": self._db.clock.now(),
        }
        await self._give_up("release_run", row)

    async def park_run(self, fence: Fence, rest: Rest, *, executed: int, replayed: int) -> RunState:
        """Put away a run that does nothing but wait, and return the state that it has now.

        Durable when it returns: the state, fsynced.
        If it raises: `LeaseLost` or a `StorageError`, and nothing was written.
        """
        row = parked_row(fence, rest, executed, replayed, self._db.clock.now())
        state = await self._give_up("park_run", {**row, "awaits": _json(sorted(rest.awaits))})
        if state is None:
            raise self._db.fenced_off(fence.run_id)
        return RunState(state)

    async def wake_runs(self) -> int:
        """Let runs whose waits are over wait for a worker; return how many.

        Durable when it returns: their states, fsynced.
        """
        row = {"now": self._db.clock.now(), "limit": MOST_WOKEN}
        ((due, opened),) = self._db.read("any_due", now=row["now"])
        if not due:
            return opened
        woken = await self._db.write(
            lambda connection: self._db.run(connection, "wake_runs", row).rowcount, "wake_runs"
        )
        return woken + opened

    async def request_cancel(self, run_id: str) -> RunRow | None:
        """Cancel a run that nobody executes, or ask its worker to; None for an unknown run.

        Durable when it returns: the cancellation or the request, fsynced.
        """
        return await self._change("cancel_run", run_id)

    async def resume_run(self, run_id: str) -> RunRow | None:
        """Make a run that needs attention wait for a worker again; None for an unknown run.

        Durable when it returns: the new state, fsynced.
        """
        return await self._change("resume_run", run_id)

    async def read_cancels(self, holder: str) -> Sequence[str]:
        """Return the runs of a worker whose end was asked for."""
        return [run_id for (run_id,) in self._db.read("read_cancels", holder=holder)]

    async def read_run(self, run_id: str) -> RunRow | None:
        """Return a run, or None when there is none of that id."""
        row = self._db.read_row("read_run", run_id=run_id)
        return None if row is None else await self._run(row)

    async def read_settled(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of the runs that are neither waiting for a worker nor executed."""
        names = _json(run_ids)
        return [await self._run(row) for row in self._db.read("read_settled", run_ids=names)]

    async def read_run_input(self, run_id: str) -> bytes:
        """Return the exact input of a run; raises `UnknownRun` or `RunErased`."""
        row = self._db.read_row("read_run_input", run_id=run_id)
        if row is None:
            raise UnknownRun(f"there is no run {run_id!r}")
        *stored, by, why = row
        if by is not None:
            raise RunErased(run_id, by=by, why=why)
        return await self._db.document(input_of(run_named(run_id)), *stored)

    async def list_runs(self, *, state: RunState | None, limit: int) -> Sequence[RunRow]:
        """Return the newest runs, newest first, each as far as it can be read."""
        wanted = None if state is None else state.value
        return await self._list("list_runs", state=wanted, limit=limit)

    async def list_children(self, run_id: str, *, limit: int) -> Sequence[RunRow]:
        """Return the runs that a run started, oldest first, each as far as it can be read."""
        return await self._list("list_children", run_id=run_id, limit=limit)

    async def list_operations(self, run_id: str) -> Sequence[OperationRow]:
        """Return what a run has recorded, in the order it was recorded."""
        rows = self._db.read("list_operations", run_id=run_id)
        return [self._db.rows.operation(run_id, row) for row in rows]

    async def list_attempts(
        self, run_id: str, *, newest: int | None = None
    ) -> Sequence[AttemptRow]:
        """Return the claims of a run, oldest first; the `newest` ones, unless that is None."""
        rows = self._db.read("list_attempts", run_id=run_id, newest=newest)
        return [AttemptRow(*row) for row in rows]

    async def count_runs(self) -> Mapping[RunState, int]:
        """Return how many runs are in each state; every state is there."""
        counts = dict(self._db.read("count_runs"))
        return {state: counts.get(state.value, 0) for state in RunState}

    async def unserved(self, served: Sequence[tuple[str, int]]) -> Sequence[RunRow]:
        """Return waiting runs whose function or version is not among `served`, as `list_runs`."""
        return await self._list("unserved", served=_json(served_names(served)))

    async def waiting_runs(self, *, limit: int, after: int = 0) -> Sequence[WaitingRun]:
        """Return runs that wait for a worker, behind a number, in the order of their numbers."""
        rows = self._db.read("waiting_runs", limit=limit, after=after)
        return [WaitingRun(*row) for row in rows]

    async def live_runs(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return those of some runs that are there and have not ended."""
        return [run_id for (run_id,) in self._db.read("live_runs", run_ids=_json(run_ids))]

    async def _claim_waiting(self, name: str, row: dict[str, Any]) -> list[Any]:
        if name == "claim_queued" and not self.lets_through(row):
            return []

        def job(connection: sqlite3.Connection) -> list[Any]:
            # Not before: it may have waited for others that write.
            claim = {**row, "now": self._db.clock.now()}
            if name == "claim_runs":
                found = self._db.run(connection, name, claim).fetchall()
            else:
                found = self.take_queued(connection, claim)
            for number, _, generation, *_ in found:
                self._note_claim(connection, number, generation, row["holder"], claim["now"])
            return found

        return await self._db.write(job, name)

    async def _change(self, name: str, run_id: str) -> RunRow | None:
        row = {"run_id": run_id, "now": self._db.clock.now()}
        await self._db.write(lambda connection: self._db.run(connection, name, row).rowcount, name)
        return await self.read_run(run_id)

    async def _given(
        self, run: tuple[str, str, int], digest: bytes, *stored: Any
    ) -> tuple[bytes, StorageError | None]:
        # What cannot be read must not keep anybody from the other runs.
        try:
            document = await self._db.document(input_of(run_named(run[0])), *stored)
            self._db.rows.check_given(document, *run, digest)
            return document, None
        except StorageError as error:
            return b"", error

    async def _list(self, name: str, **parameters: Any) -> list[RunRow]:
        found = Listing(self._db.rows, self._db.blobs, self._db.read(name, **parameters))
        pieces = found.pieces
        links = self._db.read("read_chains", pieces=_json(pieces)) if pieces else []
        return await found.runs(links)

    async def _run(self, row: tuple[Any, ...]) -> RunRow:
        *facts, piece, packing, rest = row
        if rest is None:
            return self._db.rows.run(facts, None)
        place = output_of(facts[0])
        return self._db.rows.run(facts, await self._db.document(place, piece, packing, rest))

    async def _give_up(
        self, name: str, row: dict[str, Any], whole: Split | None = None
    ) -> str | None:
        def job(connection: sqlite3.Connection) -> str | None:
            if whole is not None and whole.cuts:
                if not self._db.run(connection, "fence_holds", row).fetchone()[0]:
                    return None
                row["output_piece"] = keep(connection, self._db.sql, self._db.rows, whole)
            changed = self._db.run(connection, name, row).fetchone()
            if changed is None:
                return None
            number, state = changed
            ending = "released" if state == RunState.PENDING else state
            attempt = {**row, "ending": row.get("ending", ending), "run_number": number}
            self._db.run(connection, "end_attempt", attempt)
            return state

        return await self._db.write(job, name)

    def _standing(self, connection: sqlite3.Connection, holder: str | None) -> str | None:
        if holder is None:
            return None
        ((stands,),) = self._db.run(connection, "worker_stands", {"holder": holder}).fetchall()
        return holder if stands else None

    def _note_claim(
        self,
        connection: sqlite3.Connection,
        number: int | None,
        generation: int,
        holder: str,
        now: float,
    ) -> None:
        claim = {
            "run_number": number,
            "generation": generation,
            "holder": holder,
            "claimed_at": now,
        }
        self._db.run(connection, "insert_attempt", claim)


def _json(names: Sequence[Any]) -> str:
    return msgspec.json.encode(names).decode()
