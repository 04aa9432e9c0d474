"""An App on the store of a folder: opened, interrupted and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from perdure import App, Context, WorkerOptions
from perdure.clock import Clock, SystemClock
from perdure.engine.history import AttemptRow, OperationRow
from perdure.engine.store import NewRun, RunStore
from perdure.fence import Fence
from perdure.journal import Invocation, OperationKind, Outcome, Success
from perdure.journal.digest import Digester
from perdure.journal.store import NewRecord
from perdure.observe import Observer
from perdure.ports import no_probe
from perdure.storage.vault import Vault
from perdure.testing.manual_clock import ManualClock
from perdure.urls import location_of
from tests.storages import look, url_of

T = TypeVar("T")

RUN = "run-1"


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; one that hangs fails."""

    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())


def app_on(folder: Path, *, clock: Clock | None = None, **options: Any) -> App:
    """Return an App on the store of a folder, whose worker reacts fast and keeps its lease."""
    app = {
        "probe",
        "busy_seconds",
        "effects",
        "types",
        "secrets",
        "encryption",
        "blobs",
        "channels",
    }
    names = app & options.keys()
    extra = {name: options.pop(name) for name in names}
    worker = {
        "poll_seconds": 0.002,
        "sweep_seconds": 0.0,
        "lease_seconds": 3600.0,
        "drain_seconds": 0.0,
        **options,
    }
    return App(url_of(folder), worker=WorkerOptions(**worker), clock=clock, **extra)


def sql(folder: Path, statement: str, *parameters: Any) -> list[Any]:
    """Run a statement on the store of a folder, as another process would."""
    return look(folder, statement, *parameters)


class Pause:
    """A point in the code of a run that the first execution does not get past."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = False

    async def __call__(self) -> None:
        self.reached.set()
        if not self.open:
            await asyncio.Event().wait()


def paused_app(folder: Path, pause: Pause, seen: list[str] | None = None, **options: Any) -> App:
    """Return an App whose one function waits for a pause and returns its input."""
    app = app_on(folder, **options)

    @app.run(version=1)
    async def work(context: Context, value: Any) -> Any:
        if seen is not None:
            seen.append(context.run_id)
        await pause()
        return value

    return app


async def interrupt(app: App, pause: Pause, function: Any, value: Any = None) -> None:
    """Start a run and close the App when it has reached the pause; the next one gets past it."""
    async with app:
        await app.start(function, value, run_id=RUN)
        await pause.reached.wait()
    pause.open = True


async def finish(app: App, run_id: str = RUN) -> Any:
    """Open an App and return the result of a run that was started before."""
    async with app:
        return await app.handle(run_id).result()


async def once(app: App, function: Any, value: Any = None) -> Any:
    """Start a run in an App of its own and return its result."""
    async with app:
        return await (await app.start(function, value, run_id=RUN)).result()


async def operations(app: App, run_id: str = RUN) -> list[OperationRow]:
    """Return what a run recorded."""
    async with app.connect():
        return list(await app.store.list_operations(run_id))


async def keys(app: App, run_id: str = RUN) -> list[tuple[str, int]]:
    """Return the step and the sequence of each record of a run, in the order of recording."""
    return [(row.step_id, row.sequence) for row in await operations(app, run_id)]


async def attempts(app: App, run_id: str = RUN) -> list[AttemptRow]:
    """Return the claims of a run."""
    async with app.connect():
        return list(await app.store.list_attempts(run_id))


async def until(told: Callable[[], bool]) -> None:
    """Return as soon as something holds, looking again in every turn of the loop."""
    while not told():
        await asyncio.sleep(0)


async def in_time(clock: ManualClock, work: Coroutine[Any, Any, T]) -> T:
    """Return what something comes to, letting the clock run on to whatever is slept for."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if clock.sleeping:
            clock.advance(clock.sleeping[0])
        await asyncio.sleep(0)
    return await task


class Stored:
    """An open store with one worker and, by its fence, one run of it."""

    def __init__(self, store: RunStore, observer: Observer, fence: Fence) -> None:
        self.store = store
        self.observer = observer
        self.fence = fence

    async def append(
        self,
        step_id: str,
        sequence: int,
        document: bytes,
        cuts: tuple[int, ...] = (),
        outcome: Outcome | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Record an operation, under the run's fence or another one."""
        fence = fence or self.fence
        kind = OperationKind.MODEL_REQUEST
        invocation = Invocation(fence.run_id, step_id, sequence, kind, "model", document)
        digests = Digester().digest(step_id, document, cuts)
        outcome = outcome or Success(b"1")
        record = NewRecord(
            invocation, digests.whole, outcome, 1, 10.0, 11.0, False, cuts, digests.newest
        )
        await self.store.append_record(fence, record)

    async def begin(self, run_id: str) -> Fence:
        """Start another run of the same worker."""
        started = await self.store.start_run(
            NewRun(run_id, "work", 1, b"null", 1.0), self.fence.holder
        )
        assert started.claimed is not None
        return started.claimed.fence


@asynccontextmanager
async def stored(
    folder: Path, clock: Clock | None = None, vault: Vault | None = None
) -> AsyncGenerator[Stored]:
    """Open a store without an engine."""
    observer = Observer()
    place = location_of(url_of(folder))
    store = await place.open(
        clock or SystemClock(), observer, 20.0, no_probe, create=True, vault=vault
    )
    try:
        holder = await store.register_worker("w", 60.0)
        it = Stored(store, observer, Fence(RUN, holder, 1))
        await it.begin(RUN)
        yield it
    finally:
        await store.close()
