from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.activity import Rest
from perdure.engine.dispatch import WaitingRun
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import ClaimedRun, NewRun, RunEnd, RunRow, RunState, StartedRun
from perdure.errors import RunErased, StorageError, UnknownRun
from perdure.fence import Fence
from perdure.storage.listing import Listing
from perdure.storage.pieces import carve
from perdure.storage.places import input_of, output_of, run_named
from perdure.storage.postgres.arrays import Column
from perdure.storage.postgres.database import Database, Transaction
from perdure.storage.postgres.lane import Lane
from perdure.storage.postgres.pieces import PIECE_COLUMNS, Pieces
from perdure.storage.postgres.queues import PostgresQueues
from perdure.storage.queue_places import Turns
from perdure.storage.rows import (
    MOST_WOKEN,
    fence_row,
    first_claim,
    parked_row,
    served_names,
    started,
)

_START_COLUMNS: Final = {
    "run_id": "text",
    "function": "text",
    "version": "bigint",
    "holder": "text",
    "token": "bytea",
    "created_at": "double",
    "deadline_at": "double",
    "parent": "text",
    "queue": "text",
    "queue_key": "text",
    "priority": "bigint",
    "input_sha256": "bytea",
    "input_piece": "bytea",
    "input_packing": "bigint",
    "input": "bytea",
}


class PostgresRuns(PostgresQueues):
    """The runs of one PostgreSQL schema and their claims."""

    pieces: Pieces

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._turns = Turns()
        self._starting = Lane(database, "start_runs", _START_COLUMNS, PIECE_COLUMNS)

    async def start_run(self, run: NewRun, holder: str | None) -> StartedRun:
        """Write a run unless its id exists; with `holder`, claim it in the same transaction.

        Durable when it returns: the run and its claim, fsynced.
        If it raises: a `StorageError`; after a `StorageBusy`, nobody knows whether it was written.
        """
        await self._db.note_key()
        token = secrets.token_bytes(8)
        (whole,) = await self._db.blobs.lift_rests([carve(run.input_json)])
        holder = holder if run.queued is None else None
        row = {**self._db.rows.new_run(run, holder, whole), "token": token}
        row["input_piece"] = self._db.rows.last(whole)
        found = await self.pieces.keep(
            [whole],
            lambda more: self._starting.send(row, "start_run", key=run.run_id, more=more),
        )
        if found is None:
            # There was one, or this one was written by a try whose answer was lost.
            found = await self._db.read_row("started_before", run_id=run.run_id, token=token)
        if found is None:
            existing = await self.read_run(run.run_id)
            if existing is None:
                raise StorageError(f"run {run.run_id} was neither written nor is it there")
            return StartedRun(existing, created=False, claimed=None)
        (owner,) = found
        if owner is None:
            self.hints.tell()
            row = self._db.rows.new_run(run, None, whole)
            return StartedRun(started(run, row), created=True, claimed=None)
        claimed = first_claim(Fence(run.run_id, owner, 1), run, row)
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
        wanted = {"served": served_names(served), "only": None if only is None else [*only]}
        ((plain, queued),) = await self._db.read("any_waiting", **wanted)
        found: list[tuple[Any, ...]] = []
        asked = None if queue is None else [queue]
        for name in self._turns.order(plain=plain and queue is None, queued=queued):
            if len(found) < limit:
                row = {**wanted, "holder": holder, "queues": asked, "limit": limit - len(found)}
                found += await self._claim_waiting(name, {**row, "token": secrets.token_bytes(8)})
        claims: list[ClaimedRun] = []
        for run_id, generation, *facts in found:
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
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`.
        """
        (whole,) = await self._db.blobs.lift_rests([carve(end.output_json or b"")])
        output = None if end.output_json is None else whole
        row = self._db.rows.run_end(fence, end, self._db.clock.now(), output)
        row["output_piece"] = self._db.rows.last(whole)

        async def write(more: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
            columns = {name: Column(kind, more[name]) for name, kind in PIECE_COLUMNS.items()}
            written = {**row, **columns, "known": False}
            if end.doubted is None:
                return await self._db.write("end_run", written, "end_run", before="ended_before")
            return await self._db.transact(
                lambda transaction, _: self._park(transaction, written), "end_run"
            )

        found = await self.pieces.keep([whole], write)
        if not found:
            raise self._db.fenced_off(fence.run_id)
        self.hints.tell()
        return RunState(found[0][0])

    async def release_run(self, fence: Fence, *, locked: bool = False) -> None:
        """Give a run back unfinished, for any worker to go on with.

        Its attempt was `released`, or `locked` where this process lacks a key that it takes.
        Durable when it returns: the release, fsynced. Does nothing when the fence does not hold.
        """
        ending = "locked" if locked else "released"
        row = {**fence_row(fence), "ending": ending, "now": self._db.clock.now()}
        await self._db.write("release_run", row, "release_run")
        self.hints.tell()

    async def park_run(self, fence: Fence, rest: Rest, *, executed: int, replayed: int) -> RunState:
        """Put away a run that does nothing but wait, and return the state that it has now.

        Durable when it returns: the state, fsynced.
        If it raises: `LeaseLost` (nothing was written) or a `StorageError`.
        """
        row = parked_row(fence, rest, executed, replayed, self._db.clock.now())
        row["awaits"] = sorted(rest.awaits)

        async def job(transaction: Transaction, again: bool) -> list[tuple[Any, ...]]:  # noqa: FBT001
            # First: whoever sends a message either has sent it before this, or wakes the run.
            await transaction.run("lock_run", row)
            parked = await transaction.run("park_run", row)
            return parked or (await transaction.run("parked_before", row) if again else [])

        found = await self._db.transact(job, "park_run")
        if not found:
            raise self._db.fenced_off(fence.run_id)
        self.hints.tell()
        return RunState(found[0][0])

    async def wake_runs(self) -> int:
        """Let runs whose waits are over wait for a worker; return how many.

        Durable when it returns: their states, fsynced.
        """
        row = {"now": self._db.clock.now(), "limit": MOST_WOKEN}
        ((due, opened),) = await self._db.read("any_due", now=row["now"])
        if not due:
            return int(opened)
        woken = await self._db.write("wake_runs", row, "wake_runs")
        self.hints.tell()
        return len(woken) + opened

    async def list_children(self, run_id: str, *, limit: int) -> Sequence[RunRow]:
        """Return the runs that a run started, oldest first, each as far as it can be read."""
        return await self._list("list_children", run_id=run_id, limit=limit)

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
        return [run_id for (run_id,) in await self._db.read("read_cancels", holder=holder)]

    async def read_run(self, run_id: str) -> RunRow | None:
        """Return a run, or None when there is none of that id."""
        row = await self._db.read_row("read_run", run_id=run_id)
        return None if row is None else await self._run(row)

    async def read_settled(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of the runs that are neither waiting for a worker nor executed."""
        rows = await self._db.read("read_settled", run_ids=[*run_ids])
        return [await self._run(row) for row in rows]

    async def read_run_input(self, run_id: str) -> bytes:
        """Return the exact input of a run; raises `UnknownRun` or `RunErased`."""
        row = await self._db.read_row("read_run_input", run_id=run_id)
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

    async def list_operations(self, run_id: str) -> Sequence[OperationRow]:
        """Return what a run has recorded, in the order it was recorded."""
        rows = await self._db.read("list_operations", run_id=run_id)
        return [self._db.rows.operation(run_id, row) for row in rows]

    async def list_attempts(
        self, run_id: str, *, newest: int | None = None
    ) -> Sequence[AttemptRow]:
        """Return the claims of a run, oldest first; the `newest` ones, unless that is None."""
        rows = await self._db.read("list_attempts", run_id=run_id, newest=newest)
        return [AttemptRow(*row) for row in rows]

    async def count_runs(self) -> Mapping[RunState, int]:
        """Return how many runs are in each state; every state is there."""
        counts = dict(await self._db.read("count_runs"))
        return {state: counts.get(state.value, 0) for state in RunState}

    async def unserved(self, served: Sequence[tuple[str, int]]) -> Sequence[RunRow]:
        """Return waiting runs whose function or version is not among `served`, as `list_runs`."""
        return await self._list("unserved", served=served_names(served))

    async def waiting_runs(self, *, limit: int, after: int = 0) -> Sequence[WaitingRun]:
        """Return runs that wait for a worker, behind a number, in the order of their numbers."""
        rows = await self._db.read("waiting_runs", limit=limit, after=after)
        return [WaitingRun(*row) for row in rows]

    async def live_runs(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return those of some runs that are there and have not ended."""
        rows = await self._db.read("live_runs", run_ids=[*run_ids])
        return [run_id for (run_id,) in rows]

    async def close_runs(self) -> None:
        """Write what waits."""
        await self._starting.close()

    async def _claim_waiting(self, name: str, row: dict[str, Any]) -> list[tuple[Any, ...]]:
        if name == "claim_queued":
            return await self.take_queued(row)
        row["now"] = self._db.clock.now()
        return await self._db.write(name, row, name, before="claimed_before")

    async def _park(self, transaction: Transaction, row: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Let a run wait for a word on an effect, unless that has come."""
        # First: whoever settles the effect frees the run either before this, or after it.
        await transaction.run("lock_run", row)
        ((known,),) = await transaction.run("is_settled", row)
        return await transaction.run("end_run", {**row, "known": known})

    async def _change(self, name: str, run_id: str) -> RunRow | None:
        await self._db.write(name, {"run_id": run_id, "now": self._db.clock.now()}, name)
        self.hints.tell()
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
        rows = await self._db.read(name, **parameters)
        found = Listing(self._db.rows, self._db.blobs, [row[:-1] for row in rows])
        pieces = found.pieces
        return await found.runs(await self._db.read("read_chains", pieces=pieces) if pieces else [])

    async def _run(self, row: tuple[Any, ...]) -> RunRow:
        *facts, piece, packing, rest, _ = row
        if rest is None:
            return self._db.rows.run(facts, None)
        return self._db.rows.run(
            facts, await self._db.document(output_of(facts[0]), piece, packing, rest)
        )
