from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from perdure.clock import Clock
from perdure.codec import Codec
from perdure.engine.registry import NOTHING, Registry
from perdure.engine.store import NewRun, RunRow, RunState, RunStore
from perdure.errors import RunConflict, StorageError, UnknownRun
from perdure.journal.record import Failure, Outcome, Success
from perdure.observe import log
from perdure.queued import Queued

_MOST_CHILDREN: Final = 1_000_000


class ChildRuns:
    """Starts runs from inside of a run, and tells how they ended."""

    def __init__(self, store: RunStore, registry: Registry, codec: Codec, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._codec = codec
        self._clock = clock

    def name_of(self, function: Callable[..., Any] | str) -> str:
        """Return the name under which a run function is registered; raises `UnknownFunction`."""
        if isinstance(function, str):
            return self._registry.find(function).name
        return self._registry.of(function).name

    async def start(
        self,
        parent: str,
        run_id: str,
        function: Callable[..., Any] | str,
        input_json: bytes | None,
        version: int | None,
        deadline_seconds: float | None,
        *,
        queued: Queued | None,
    ) -> None:
        """Start a run under an id, unless that was done before; with whichever version, then.

        Durable when it returns: the run, fsynced.
        If it raises: `UnknownFunction`, `UnknownQueue`, `RunConflict`, or a `StorageError`.
        """
        registered = self._registry.find(self.name_of(function), version)
        if input_json is None:
            what = f"the input of {run_id}"
            default = registered.input_of(NOTHING)
            input_json = self._codec.encode(default, what=what, function=registered.function)
        if queued is not None:
            await self._registry.queues.check(self._store, queued.queue)
        run = NewRun(
            run_id,
            registered.name,
            registered.version,
            input_json,
            self._clock.now(),
            deadline_seconds,
            parent,
            queued,
        )
        started = await self._store.start_run(run, None)
        if started.created:
            return
        row = started.row
        same = row.input_sha256 == hashlib.sha256(input_json).digest()
        above = await self._store.read_run(parent)
        # One of an earlier run of the parent's id may be there still.
        same = same and (above is None or row.created_at >= above.created_at)
        if not same or (row.function, row.parent) != (run.function, parent):
            raise RunConflict(
                f"run {run_id} exists and is another one than the child that run {parent} starts"
                " under this id: start it under one of its own"
            )

    async def ended(self, run_id: str) -> Outcome | None:
        """Return what a run came to, or None while it has not ended; raises `UnknownRun`."""
        row = await self._store.read_run(run_id)
        if row is None:
            raise UnknownRun(
                f"run {run_id}, which this one waits for, is not in this store: import it, then"
                " resume this one"
            )
        return _outcome_of(row) if row.state.ended else None

    async def family(self, run_id: str) -> Sequence[str]:
        """Return a run and all that were started below it."""
        return await with_children(self._store, [run_id])

    async def end_of(self, run_id: str) -> Outcome:
        """Return what a run that has ended came to: its output, or why there is none."""
        row = await self._store.read_run(run_id)
        return _gone(run_id) if row is None else _outcome_of(row)


def _outcome_of(row: RunRow) -> Outcome:
    if row.tombstone is not None:
        return _gone(row.run_id)
    if row.state is RunState.COMPLETED and row.output_json is not None:
        return Success(row.output_json)
    # One that needed attention keeps why when it is cancelled.
    if row.problem is None or row.state is RunState.CANCELLED:
        return Failure("RunCancelled", message=f"run {row.run_id} was {row.state.value}")
    problem = row.problem
    return Failure(problem.code, type_name=problem.type_name, message=problem.message)


def _gone(run_id: str) -> Failure:
    return Failure("UnknownRun", message=f"run {run_id} is not there any more")


async def with_children(store: RunStore, run_ids: Iterable[str]) -> Sequence[str]:
    """Return some runs and all that were started from inside of them, however deep."""
    found = [*run_ids]
    seen = {*found}
    for run_id in found:
        rows = await store.list_children(run_id, limit=_MOST_CHILDREN)
        # A run stands below itself where ids were given by hand, and used again.
        new = [row.run_id for row in rows if row.run_id not in seen]
        seen.update(new)
        found += new
    return found


async def is_cancelled(store: RunStore, run_id: str) -> bool:
    """Return whether the end of a run was asked for."""
    row = await store.read_run(run_id)
    return row is not None and row.cancel_requested


async def cancel_below(store: RunStore, run_id: str) -> None:
    """Cancel the runs that a run has started while its own end was asked for.

    Durable when it returns: the cancellations and the requests, fsynced, unless the store refused.
    """
    try:
        for row in await store.list_children(run_id, limit=_MOST_CHILDREN):
            if not row.state.ended and not row.cancel_requested:
                await store.request_cancel(row.run_id)
    except StorageError as error:
        log.error("run %s is cancelled, and perhaps not all below it: %s", run_id, error)
