from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.activity import Rest
from perdure.clock import Clock
from perdure.engine.dispatch import WaitingRun
from perdure.engine.health import StoreReport
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.queues import QueueStore
from perdure.engine.reencryption import Resealing
from perdure.engine.retention import Expiring
from perdure.engine.run_state import RunState
from perdure.engine.schedules import ScheduleStore
from perdure.engine.turns import TurnStore
from perdure.engine.workers import WorkerNews, WorkerRow
from perdure.errors import EffectAmbiguous, StorageError
from perdure.fence import Fence
from perdure.journal.store import CheckpointStore
from perdure.ports import Store
from perdure.queued import Queued
from perdure.session.store import SessionStore

if TYPE_CHECKING:
    from perdure.journal.checkpoint import Checkpoint


class RunProblem(msgspec.Struct, frozen=True):
    """Why a run failed or needs attention.

    `traceback` is where, as Python prints it and cut to its end; empty where there is none.
    """

    code: str
    type_name: str
    message: str
    traceback: str = ""


class Tombstone(msgspec.Struct, frozen=True):
    """That a run was erased: when (wall seconds, UTC), by whom and why.

    `whole` is False while something of it is still there, because erasing goes on or was cut
    short; erasing again finishes it.
    """

    at: float
    by: str
    why: str
    whole: bool


class NewRun(msgspec.Struct, frozen=True):
    """A run to be written; `input_json` is one JSON document.

    `deadline_seconds` is how long it may take from now on, on the store's clock, or None.
    `parent` is the id of the run that starts it, or None, and `queued` where it waits for a worker,
    None for no queue.
    """

    run_id: str
    function: str
    version: int
    input_json: bytes
    created_at: float
    deadline_seconds: float | None = None
    parent: str | None = None
    queued: Queued | None = None


class RunRow(msgspec.Struct, frozen=True):
    """A run as it stands.

    `generation` counts its claims. `holder` is the worker that owns it now, or None. Times are
    wall seconds, UTC, or None when that has not happened. Of an erased run, `output_json` and
    `problem` are None whatever its state. In a list, `unreadable` is why something of a run could
    not be read: what could not is then None, and a digest empty. `wake_at` is when a run that
    waits goes on by itself, and `deadline_at` when it has to have ended, or None. `queued` is where
    it waits for a worker, None for no queue; of an erased run it has no key.
    """

    run_id: str
    function: str
    version: int
    state: RunState
    input_sha256: bytes
    holder: str | None
    generation: int
    cancel_requested: bool
    output_json: bytes | None
    problem: RunProblem | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    tombstone: Tombstone | None = None
    unreadable: StorageError | None = None
    wake_at: float | None = None
    deadline_at: float | None = None
    parent: str | None = None
    queued: Queued | None = None


class ClaimedRun(msgspec.Struct, frozen=True):
    """A run that this worker owns now; `recovered` tells that it was claimed before.

    `unreadable` is why its input could not be read; there is none then. `deadline_at` is when it
    has to have ended, in wall seconds, UTC, or None.
    """

    fence: Fence
    function: str
    version: int
    input_json: bytes
    started_at: float
    recovered: bool
    unreadable: StorageError | None = None
    deadline_at: float | None = None
    parent: str | None = None


class StartedRun(msgspec.Struct, frozen=True):
    """What starting came to: the run that exists now, and its claim if it was claimed at once."""

    row: RunRow
    created: bool
    claimed: ClaimedRun | None


class RunEnd(msgspec.Struct, frozen=True):
    """How an execution of a run ended, with what it executed and what it replayed.

    `cause` is the exception that ended it, where that happened in this process, and `tombstone`
    tells that the run was erased since; neither is stored with the end.
    """

    state: RunState
    output_json: bytes | None = None
    problem: RunProblem | None = None
    executed: int = 0
    replayed: int = 0
    cause: BaseException | None = None
    tombstone: Tombstone | None = None

    @property
    def doubted(self) -> str | None:
        """The operation key of the effect that a person has to settle first, or None."""
        parked = self.state is RunState.NEEDS_ATTENTION
        cause = self.cause
        return cause.operation_key if parked and isinstance(cause, EffectAmbiguous) else None


class RunStore(
    Store,
    CheckpointStore,
    Expiring,
    Resealing,
    ScheduleStore,
    QueueStore,
    TurnStore,
    SessionStore,
    Protocol,
):
    """The port through which the engine keeps runs and their owners.

    A worker's ownership is timed by a clock that all workers of the store share and that no
    process can set. Every write of a run names its fence in the WHERE clause. `clock` is the one
    that the instants in this store are of.
    """

    clock: Clock

    async def start_run(self, run: NewRun, holder: str | None) -> StartedRun:
        """Write a run unless its id exists; with `holder`, claim it in the same transaction.

        A holder whose lease was taken claims nothing, and no holder a run of a queue; the run then
        waits for any worker. Its queue is there.

        Durable when it returns: the run and its claim, fsynced.
        If it raises: a `StorageError`, and nothing was written.
        """
        ...

    async def claim_runs(
        self,
        holder: str,
        served: Sequence[tuple[str, int]],
        limit: int,
        only: Sequence[str] | None = None,
        *,
        queue: str | None = None,
    ) -> Sequence[ClaimedRun]:
        """Take up to `limit` runs that wait for a worker, oldest first.

        Of those that wait in queues, it takes what these let through, by priority and then the
        oldest; neither they nor those of no queue keep the others waiting for ever.
        `served` are the function names and versions that the worker can run, `only` the run ids
        that it wants, or None for any, and `queue` the one whose runs it wants, None for all.
        Durable when it returns: the claims, fsynced.
        """
        ...

    async def end_run(self, fence: Fence, end: RunEnd) -> RunState:
        """Write how a run ended, give up its ownership, and return the state that it has now.

        A run that would need attention is cancelled instead where somebody asked for that. One that
        would wait for a person's word on the effect `end.doubted` waits for a worker instead where
        that was settled while it was running.

        Durable when it returns: the end, fsynced.
        If it raises: `LeaseLost` when the fence no longer holds, or a `StorageError`.
        """
        ...

    async def release_run(self, fence: Fence, *, locked: bool = False) -> None:
        """Give a run back unfinished, for any worker to go on with.

        Its attempt was `released`, or `locked` where this process lacks a key that it takes.
        Durable when it returns: the release, fsynced. Nothing happens when the fence no longer
        holds.
        """
        ...

    async def park_run(self, fence: Fence, rest: Rest, *, executed: int, replayed: int) -> RunState:
        """Put away a run that does nothing but wait, and return the state that it has now.

        It sleeps, or is suspended if it awaits messages; it waits for a worker instead if one of
        those has come, and is cancelled if that was asked for.

        Durable when it returns: the state, fsynced.
        If it raises: `LeaseLost` when the fence no longer holds, or a `StorageError`.
        """
        ...

    async def wake_runs(self) -> int:
        """Let runs whose waits are over wait for a worker; return how many, a bounded number.

        That the rate of a queue lets a run begin now counts as one.
        Idempotent and safe to call from any number of workers. Durable when it returns.
        """
        ...

    async def request_cancel(self, run_id: str) -> RunRow | None:
        """Cancel a run and those below it, or ask their workers to; None for an unknown run.

        Durable when it returns: the cancellations and the requests, fsynced.
        """
        ...

    async def resume_run(self, run_id: str) -> RunRow | None:
        """Make a run that failed or needs attention wait for a worker again.

        Returns the run as it is then, or None for an unknown run; in another state it stays as it
        is.

        Durable when it returns: the new state, fsynced.
        """
        ...

    async def erase_run(self, run_id: str, *, by: str, why: str, rewrite: bool = False) -> None:
        """Delete all that an ended run holds, its receipts too, and keep a tombstone.

        Not in one transaction, but with the tombstone in the first one. With `rewrite` the store
        also writes anew what may still hold fragments in places that it does not use.

        Durable when it returns: the tombstone and the deletions, fsynced.
        If it raises: `UnknownRun` or `NotErasable`, and nothing was deleted.
        After a `StorageError` or a crash, erasing again finishes what was begun.
        """
        ...

    async def read_cancels(self, holder: str) -> Sequence[str]:
        """Return the runs of a worker whose end was asked for."""
        ...

    async def read_run(self, run_id: str) -> RunRow | None:
        """Return a run, or None when there is none of that id."""
        ...

    async def read_settled(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of the runs that are neither waiting for a worker nor executed."""
        ...

    async def read_run_input(self, run_id: str) -> bytes:
        """Return the exact input of a run; raises `UnknownRun` or `RunErased`."""
        ...

    async def list_runs(self, *, state: RunState | None, limit: int) -> Sequence[RunRow]:
        """Return the newest runs, newest first, each as far as it can be read."""
        ...

    async def list_children(self, run_id: str, *, limit: int) -> Sequence[RunRow]:
        """Return the runs that a run started, oldest first, each as far as it can be read."""
        ...

    async def list_operations(self, run_id: str) -> Sequence[OperationRow]:
        """Return what a run has recorded, in the order it was recorded."""
        ...

    async def list_checkpoints(self, run_id: str) -> Sequence[Checkpoint]:
        """Return the checkpoints of a run, in the order in which they were created."""
        ...

    async def list_attempts(
        self, run_id: str, *, newest: int | None = None
    ) -> Sequence[AttemptRow]:
        """Return the claims of a run, oldest first; the `newest` ones, unless that is None."""
        ...

    async def list_workers(self) -> Sequence[WorkerRow]:
        """Return the workers that the store knows, oldest first."""
        ...

    async def count_runs(self) -> Mapping[RunState, int]:
        """Return how many runs are in each state; every state is there."""
        ...

    async def examine(self) -> StoreReport:
        """Check the whole store for damage and for what will soon stop it; reads all of it."""
        ...

    async def unserved(self, served: Sequence[tuple[str, int]]) -> Sequence[RunRow]:
        """Return waiting runs whose function or version is not among `served`, as `list_runs`."""
        ...

    async def waiting_runs(self, *, limit: int, after: int = 0) -> Sequence[WaitingRun]:
        """Return runs that wait for a worker, behind a number, in the order of their numbers.

        The limits of queues do not matter here.
        """
        ...

    async def live_runs(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return those of some runs that are there and have not ended."""
        ...

    async def register_worker(self, name: str, lease_seconds: float) -> str:
        """Make a worker known and return its holder, which no other worker has or will have.

        Durable when it returns: the lease, fsynced.
        """
        ...

    def renew_worker(self, holder: str, lease_seconds: float) -> WorkerNews:
        """Extend the lease of a worker over all of its runs; called from a thread of its own.

        Durable when it returns: the renewal, fsynced.
        If it raises: `LeaseLost` when the lease had ended and its runs were taken, or a
        `StorageError`.
        """
        ...

    async def retire_worker(self, holder: str) -> None:
        """Give up a worker's lease and every run it still owns.

        Durable when it returns: the release, fsynced.
        """
        ...

    async def sweep(self, holder: str) -> int:
        """Release the runs of workers that died or let their lease run out; return how many.

        Idempotent and safe to call from any number of workers. Durable when it returns.
        """
        ...

    def changed(self) -> bool:
        """Return whether anything may have been written since the last call, by anyone."""
        ...

    async def close(self) -> None:
        """Finish the writes under way and let go of the store."""
        ...
