from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.clock import Clock
from perdure.engine.reencryption import Resealing
from perdure.engine.retention import Expiring
from perdure.errors import EffectAmbiguous, StorageError
from perdure.fence import Fence
from perdure.journal.store import CheckpointStore
from perdure.ports import Store

if TYPE_CHECKING:
    from perdure.journal.checkpoint import Checkpoint


class RunState(enum.StrEnum):
    """Where a run stands.

    A person may resume a run that failed or needs attention; the other two ends are final.
    """

    PENDING = "pending"
    RUNNING = "running"
    NEEDS_ATTENTION = "needs_attention"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def settled(self) -> bool:
        """Whether the run waits for nobody but, perhaps, a person."""
        return self not in {RunState.PENDING, RunState.RUNNING}

    @property
    def ended(self) -> bool:
        """Whether the run came to an end, well or not."""
        return self in {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}


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
    """A run to be written; `input_json` is one JSON document."""

    run_id: str
    function: str
    version: int
    input_json: bytes
    created_at: float


class RunRow(msgspec.Struct, frozen=True):
    """A run as it stands.

    `generation` counts its claims. `holder` is the worker that owns it now, or None. Times are
    wall seconds, UTC, or None when that has not happened. Of an erased run, `output_json` and
    `problem` are None whatever its state. In a list, `unreadable` is why something of a run could
    not be read: what could not is then None, and a digest empty.
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


class ClaimedRun(msgspec.Struct, frozen=True):
    """A run that this worker owns now; `recovered` tells that another one had owned it.

    `unreadable` is why its input could not be read; there is none then.
    """

    fence: Fence
    function: str
    version: int
    input_json: bytes
    started_at: float
    recovered: bool
    unreadable: StorageError | None = None


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


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker process: who it is, and whether its lease stands."""

    holder: str
    name: str
    pid: int
    host: str
    alive: bool
    runs: int
    started_at: float


class AttemptRow(msgspec.Struct, frozen=True):
    """One claim of a run: by whom, when, and how it ended.

    `ended_at` and `ending` are None while it goes on. `executed` and `replayed` count operations
    and are written when the execution ends, so they are 0 for one that was lost.
    """

    generation: int
    holder: str
    worker: str
    pid: int
    claimed_at: float
    ended_at: float | None
    ending: str | None
    executed: int
    replayed: int


class OperationRow(msgspec.Struct, frozen=True):
    """One recorded operation as people look at it; sizes are bytes, times wall seconds, UTC."""

    step_id: str
    sequence: int
    kind: str
    handler_id: str
    input_sha256: bytes
    status: str
    input_bytes: int
    payload_bytes: int
    attempt: int
    generation: int
    started_at: float
    finished_at: float


class StoreFault(msgspec.Struct, frozen=True):
    """Something about a store that a person has to mend; the message says how."""

    code: str
    message: str


class StoreReport(msgspec.Struct, frozen=True):
    """What a store says about itself; `facts` are the driver's own, sizes in bytes."""

    driver: str
    schema_version: int
    facts: Mapping[str, str | int]
    faults: Sequence[StoreFault]


class RunStore(Store, CheckpointStore, Expiring, Resealing, Protocol):
    """The port through which the engine keeps runs and their owners.

    A worker's ownership is timed by a clock that all workers of the store share and that no
    process can set. Every write of a run names its fence in the WHERE clause. `clock` is the one
    that the instants in this store are of.
    """

    clock: Clock

    async def start_run(self, run: NewRun, holder: str | None) -> StartedRun:
        """Write a run unless its id exists; with `holder`, claim it in the same transaction.

        A holder whose lease was taken claims nothing; the run then waits for any worker.

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
    ) -> Sequence[ClaimedRun]:
        """Take up to `limit` runs that wait for a worker, oldest first.

        `served` are the function names and versions that the worker can run, `only` the run ids
        that it wants, or None for any.
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

    async def release_run(self, fence: Fence) -> None:
        """Give a run back unfinished, for any worker to go on with.

        Durable when it returns: the release, fsynced. Nothing happens when the fence no longer
        holds.
        """
        ...

    async def request_cancel(self, run_id: str) -> RunRow | None:
        """Cancel a run that nobody executes, or ask its worker to; None for an unknown run.

        Durable when it returns: the cancellation or the request, fsynced.
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

    async def list_operations(self, run_id: str) -> Sequence[OperationRow]:
        """Return what a run has recorded, in the order it was recorded."""
        ...

    async def list_checkpoints(self, run_id: str) -> Sequence[Checkpoint]:
        """Return the checkpoints of a run, in the order in which they were created."""
        ...

    async def list_attempts(self, run_id: str) -> Sequence[AttemptRow]:
        """Return the claims of a run, oldest first."""
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


class WorkerNews(msgspec.Struct, frozen=True):
    """What a renewal learns: the runs that the worker still owns and those to be cancelled."""

    owned: frozenset[tuple[str, int]]
    cancelled: frozenset[str]
