from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from perdure.engine.chores import Chore
from perdure.engine.dispatch import Dispatcher
from perdure.engine.driving import LOOK_SECONDS, Driving
from perdure.engine.ends import Ends, end_of, possible_run, unknown_run
from perdure.engine.new_run import check_deadline, check_same
from perdure.engine.options import WorkerOptions
from perdure.engine.registry import Function, Registry, RunFunction
from perdure.engine.run_handle import RunHandle
from perdure.engine.store import NewRun, RunEnd, RunRow, RunState, Tombstone
from perdure.engine.worker import Worker
from perdure.errors import (
    EngineClosed,
    RunCancelled,
    RunErased,
    RunFailed,
    RunNeedsAttention,
    StorageCorrupt,
    StorageError,
)
from perdure.ids import check_identifier, new_run_id
from perdure.observe import log
from perdure.ports import Channels, Ports
from perdure.queued import Queued

if TYPE_CHECKING:
    from perdure.engine.archive import ArchiveStore
    from perdure.engine.rehearsal import Rehearsed

_LEAVING_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 1.0

_GONE: Final = "{} is gone from the database, which is damaged; restore it from a backup"


class Engine:
    """Starts runs, drives them through a worker, and waits for those of others.

    `closing` is called before the store is closed, for what writes to it besides the worker. With a
    `dispatcher`, the worker executes what that asks for; the store then tells it what may go on.
    """

    def __init__(
        self,
        store: ArchiveStore,
        ports: Ports,
        registry: Registry,
        options: WorkerOptions,
        *,
        closing: Callable[[], Awaitable[None]] | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self.store = store
        self._dispatcher = dispatcher
        self._driving: Chore | None = None
        self._closing = closing
        self.codec = ports.codec
        self._registry = registry
        self._options = options
        self._ports = ports
        self._worker: Worker | None = None
        self._ends = Ends(store)
        self._ticks: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

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
            if self._dispatcher is not None:
                await self._dispatcher.open()
            self._worker = Worker(
                self.store,
                self._ports,
                self._registry,
                self._options,
                self._ends.settle,
                only_started=only_started,
                driven=self._dispatcher is not None,
            )
            await self._worker.open()
            await self._drive(self._worker)
        self._ticks = asyncio.create_task(self._tick_for_ever(), name="perdure engine")

    async def _drive(self, worker: Worker) -> None:
        if self._dispatcher is None:
            return
        places = self._options.concurrency
        driving = Driving(self.store, worker, self._dispatcher, self._registry, places)
        await driving.look()
        what, clock = "runs are dispatched", self._ports.clock
        self._driving = Chore(what, driving.look, LOOK_SECONDS, clock)

    async def close(self) -> None:
        """Stop, give unfinished runs back, and close the store."""
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.wait([self._ticks])
        self._ends.close()
        try:
            await self._stop_working()
            if self._closing is not None:
                await self._closing()
        finally:
            await self.store.close()
            if self._ports.threads is not None:
                self._ports.threads.shutdown(wait=False)

    async def _stop_working(self) -> None:
        if self._driving is not None:
            await self._driving.close()
        # It waits for runs that the worker stops, and is to ask for no more meanwhile.
        leaving = None
        if self._dispatcher is not None:
            leaving = asyncio.create_task(self._dispatcher.close())
        if self._worker is not None:
            await self._worker.close()
        if leaving is not None and (await asyncio.wait([leaving], timeout=_LEAVING_SECONDS))[1]:
            log.warning("what dispatches runs does not answer, and is left")
            leaving.cancel()

    @property
    def channels(self) -> Channels:
        """Where the messages of sessions are."""
        assert self._ports.channels is not None  # an App has some
        return self._ports.channels

    def turn(self, name: str | None) -> RunFunction:
        """Return the function that answers what is said in sessions; raises `UnknownFunction`."""
        return self._registry.turn(name)

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
        self._ends.settle(run_id, end_of(row))
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
        from perdure.engine.rehearsal import rehearse  # most programs need none

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
        if not self._executes(run_id):
            row = await self.find(run_id)
            if row.state.settled:
                return end_of(row)
        return await self._ends.wait(run_id)

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
                    await self._ends.look(self._executes)
                if self._worker is not None:
                    await self._worker.tick(changed=changed)
                if self._driving is not None:
                    self._driving.tick()
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

    def _executes(self, run_id: str) -> bool:
        return self._worker is not None and self._worker.executes(run_id)

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


def _erased(run_id: str, tombstone: Tombstone) -> RunErased:
    return RunErased(run_id, by=tombstone.by, why=tombstone.why)


def _known(run_id: str, row: RunRow | None) -> RunRow:
    if row is None:
        raise unknown_run(run_id)
    return row
