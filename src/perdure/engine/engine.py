from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from perdure.engine.new_run import check_deadline, check_same
from perdure.engine.options import WorkerOptions
from perdure.engine.registry import Function, Registry, RunFunction
from perdure.engine.rehearsal import Rehearsed, rehearse
from perdure.engine.store import NewRun, RunEnd, RunRow, RunState, Tombstone
from perdure.engine.worker import Worker
from perdure.errors import (
    EngineClosed,
    KeyUnavailable,
    PerdureError,
    RunCancelled,
    RunErased,
    RunFailed,
    RunNeedsAttention,
    StorageCorrupt,
    StorageError,
    StorageMissing,
    UnknownRun,
)
from perdure.ids import check_identifier, is_identifier, new_run_id
from perdure.observe import log
from perdure.ports import Ports
from perdure.queued import Queued

if TYPE_CHECKING:
    from perdure.engine.archive import ArchiveStore

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS: Final = 1.0

_GONE: Final = "{} is gone from the database, which is damaged; restore it from a backup"
_UNREADABLE: Final = (KeyUnavailable, StorageCorrupt, StorageMissing)
"""What reading a result raises that is not there, or not for this process."""


class RunHandle(Generic[T]):
    """A run that was started, here or anywhere."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self.run_id = run_id
        self._engine = engine

    async def result(self) -> T:
        """Wait for the run to end and return what its function returned.

        Raises `RunFailed`, `RunCancelled`, or `RunNeedsAttention` when a person has to act first,
        `RunErased` when nobody can say any more, and `InvalidPayload` for a result of a class that
        this App does not know.
        """
        return await self._engine.result(self.run_id)

    async def status(self) -> RunState:
        """Return where the run stands."""
        return (await self._engine.find(self.run_id)).state

    async def cancel(self) -> RunState:
        """Ask for the run's end and return where it stands; its code sees a cancellation.

        Durable when it returns: the cancellation or the request for it, fsynced.
        """
        return (await self._engine.cancel(self.run_id)).state


class Engine:
    """Starts runs, drives them through a worker, and waits for those of others."""

    def __init__(
        self,
        store: ArchiveStore,
        ports: Ports,
        registry: Registry,
        options: WorkerOptions,
    ) -> None:
        self.store = store
        self.codec = ports.codec
        self._registry = registry
        self._options = options
        self._ports = ports
        self._worker: Worker | None = None
        self._waiting: dict[str, list[asyncio.Future[RunEnd]]] = {}
        self._ticks: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._looked_at = float("-inf")
        self._looked_for = 0

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise `EngineClosed` in another event loop than the one that opened this engine."""
        if loop is not self._loop:
            raise EngineClosed(
                "the App is open in another event loop: use it there, for instance through"
                " asyncio.run_coroutine_threadsafe"
            )

    async def open(self, *, work: bool, only_started: bool = False) -> None:
        """Begin to watch the store and, with `work`, to execute runs.

        With `only_started`, only those that this engine is asked to start.
        """
        await self._registry.queues.open(self.store, work=work and not only_started)
        if work:
            self._worker = Worker(
                self.store,
                self._ports,
                self._registry,
                self._options,
                self._settle,
                only_started=only_started,
            )
            await self._worker.open()
        self._ticks = asyncio.create_task(self._tick_for_ever(), name="perdure engine")

    async def close(self) -> None:
        """Stop, give unfinished runs back, and close the store."""
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.wait([self._ticks])
        for future in (future for futures in self._waiting.values() for future in futures):
            if not future.done():
                future.set_exception(EngineClosed("the App was closed before the run ended"))
        try:
            if self._worker is not None:
                await self._worker.close()
        finally:
            await self.store.close()
            if self._ports.threads is not None:
                self._ports.threads.shutdown(wait=False)

    async def start(
        self,
        function: Function | str,
        value: Any,
        run_id: str | None,
        version: int | None,
        deadline_seconds: float | None = None,
        queued: Queued | None = None,
    ) -> RunHandle[Any]:
        """Write a run, or find the one that this id already names.

        Durable when it returns: the run, fsynced.
        """
        registered = self._registered(function, version)
        run_id = new_run_id() if run_id is None else check_identifier(run_id, "run id")
        input_json = self._ports.codec.encode(
            registered.input_of(value), what="input", function=registered.function
        )
        check_deadline(deadline_seconds)
        if queued is not None:
            await self._registry.queues.check(self.store, queued.queue)
        name, now = registered.name, self._ports.clock.now()
        version = registered.version
        run = NewRun(run_id, name, version, input_json, now, deadline_seconds, queued=queued)
        if self._worker is None:
            started = await self.store.start_run(run, None)
        else:
            started = await self._worker.start(run)
        if not started.created:
            check_same(started.row, run)
            self._warn_if_unserved(started.row)
        else:
            self._ports.observer.count("perdure_run_started_total")
        return RunHandle(self, run_id)

    def input_from_json(self, name: str, version: int | None, value: Any) -> Any:
        """Return a JSON value as what a run function takes: the instances of its classes.

        Raises `UnknownFunction`, or `InvalidPayload` for what the function does not take.
        """
        from perdure.engine.plain import given  # few start runs so

        return given(self._registry.find(name, version), value)

    def answer_from_json(self, handler_id: str, value: Any) -> Any:
        """Return a JSON value as what the function of a handler id returns, if that is known.

        Raises `InvalidPayload` for what the function could never return.
        """
        from perdure.engine.plain import answered

        function = self._registry.performed_as(handler_id)
        if function is not None:
            self.codec.learn(function)
        return answered(function, handler_id, value)

    async def result(self, run_id: str) -> Any:
        """Wait for a run to end and return what its function returned."""
        end = await self._end_of(run_id)
        if end.tombstone is not None:
            raise _erased(run_id, end.tombstone)
        match end.state:
            case RunState.COMPLETED:
                if end.output_json is None:
                    raise StorageCorrupt(_GONE.format(f"what run {run_id} came to"))
                return self._ports.codec.decode(end.output_json, what="result")
            case RunState.CANCELLED:
                raise RunCancelled(run_id)
            case _:
                problem = end.problem
                if problem is None:
                    raise StorageCorrupt(_GONE.format(f"why run {run_id} is {end.state.value}"))
                if end.state is RunState.NEEDS_ATTENTION:
                    raise RunNeedsAttention(run_id, code=problem.code, message=problem.message)
                raise RunFailed(
                    run_id,
                    code=problem.code,
                    type_name=problem.type_name,
                    message=problem.message,
                    traceback=problem.traceback,
                ) from end.cause

    async def find(self, run_id: str) -> RunRow:
        """Return a run as it stands; raises `UnknownRun`."""
        return _known(run_id, await self.store.read_run(possible_run(run_id)))

    async def cancel(self, run_id: str) -> RunRow:
        """Cancel a run, or ask its worker to; raises `UnknownRun`.

        Durable when it returns: the cancellation or the request, fsynced.
        """
        row = _known(run_id, await self.store.request_cancel(possible_run(run_id)))
        self._settle_row(row)
        return row

    async def resume(self, run_id: str) -> RunRow:
        """Let a run that needs attention go on; raises `UnknownRun` or `RunErased`.

        Durable when it returns: the new state, fsynced.
        """
        row = _known(run_id, await self.store.resume_run(possible_run(run_id)))
        if row.tombstone is not None:
            raise _erased(run_id, row.tombstone)
        return row

    async def rehearse(self, run_id: str) -> Rehearsed:
        """Compare a run's journal with the code that is registered here; raises `UnknownRun`."""
        row = await self.find(run_id)
        if row.tombstone is not None:
            raise _erased(run_id, row.tombstone)
        return await rehearse(self.store, self._registry, self._ports, row)

    async def erase(self, run_id: str, *, by: str, why: str, rewrite: bool) -> RunRow:
        """Delete all that an ended run holds, and return the tombstone that is left.

        Durable when it returns: the tombstone and the deletions, fsynced.
        """
        await self.store.erase_run(possible_run(run_id), by=by, why=why, rewrite=rewrite)
        return await self.find(run_id)

    async def _end_of(self, run_id: str) -> RunEnd:
        if self._worker is None or not self._worker.executes(run_id):
            row = await self.find(run_id)
            if row.state.settled:
                return _end(row)
        future: asyncio.Future[RunEnd] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(future)
        try:
            return await future
        finally:
            self._forget(run_id, future)

    async def _tick_for_ever(self) -> None:
        complaints: set[str] = set()
        changed = True
        pause = self._options.poll_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                # Not forgotten before it was acted upon: the store tells of it once.
                changed = self.store.changed() or changed
                if changed:
                    await self._look_for_ends()
                if self._worker is not None:
                    await self._worker.tick(changed=changed)
                changed = False
                complaints.clear()
                pause = self._options.poll_seconds
            except StorageError as error:
                pause = max(pause, min(2 * pause, _LONGEST_PAUSE_SECONDS))
                if str(error) not in complaints:
                    complaints.add(str(error))
                    log.error("the engine waits for its store: %s", error)
            except Exception:  # noqa: BLE001 - the loop that recovers runs must outlive a bug
                log.exception("the engine goes on after an unexpected error")

    async def _look_for_ends(self) -> None:
        worker = self._worker
        elsewhere = [
            run_id for run_id in self._waiting if worker is None or not worker.executes(run_id)
        ]
        if elsewhere:
            try:
                rows = await self.store.read_settled(elsewhere)
            except _UNREADABLE:
                rows = await self._readable(elsewhere)
            for row in rows:
                self._settle_row(row)
            await self._look_for_gone(elsewhere)

    async def _look_for_gone(self, run_ids: Sequence[str]) -> None:
        """Tell who waits for a run that is not there any more; one is looked for a second."""
        if self._loop.time() - self._looked_at < _LONGEST_PAUSE_SECONDS:
            return
        self._looked_at = self._loop.time()
        self._looked_for += 1
        run_id = run_ids[self._looked_for % len(run_ids)]
        with suppress(*_UNREADABLE):
            if await self.store.read_run(run_id) is None:
                self._refuse(run_id, _unknown(run_id))

    def _refuse(self, run_id: str, error: PerdureError) -> None:
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_exception(error)

    async def _readable(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of some runs that are settled; tell who waits for one that is unreadable."""
        rows: list[RunRow] = []
        for run_id in run_ids:
            try:
                rows += await self.store.read_settled([run_id])
            except _UNREADABLE as error:
                self._refuse(run_id, error)
        return rows

    def _settle_row(self, row: RunRow) -> None:
        self._settle(row.run_id, _end(row))

    def _settle(self, run_id: str, end: RunEnd) -> None:
        if not end.state.settled:
            return
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(end)

    def _forget(self, run_id: str, future: asyncio.Future[RunEnd]) -> None:
        waiting = self._waiting.get(run_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(run_id, None)

    def _warn_if_unserved(self, row: RunRow) -> None:
        served = (row.function, row.version) in self._registry.served()
        if self._worker is not None and not served and not row.state.settled:
            log.warning(
                "run %s waits for a worker that serves %s@%s, which this one does not: keep the old"
                " version registered until its runs have ended",
                row.run_id,
                row.function,
                row.version,
            )

    def _registered(self, function: Function | str, version: int | None) -> RunFunction:
        if isinstance(function, str):
            return self._registry.find(function, version)
        registered = self._registry.of(function)
        return registered if version is None else self._registry.find(registered.name, version)


def _end(row: RunRow) -> RunEnd:
    return RunEnd(row.state, row.output_json, row.problem, tombstone=row.tombstone)


def _erased(run_id: str, tombstone: Tombstone) -> RunErased:
    return RunErased(run_id, by=tombstone.by, why=tombstone.why)


def possible_run(run_id: str) -> str:
    """Return what may be a run's id; a text that no store takes names no run."""
    if not is_identifier(run_id):
        raise _unknown(run_id)
    return run_id


def _known(run_id: str, row: RunRow | None) -> RunRow:
    if row is None:
        raise _unknown(run_id)
    return row


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"there is no run {run_id!r} in this store")
