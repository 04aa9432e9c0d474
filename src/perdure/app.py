from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, overload

from perdure.blocking import Bridge
from perdure.clock import Clock, SystemClock
from perdure.codec import Codec, Named
from perdure.context import Context
from perdure.declaration import KnownEffects
from perdure.effects.audit import AuditSink
from perdure.encryption import Keyring, vault_of
from perdure.engine.options import WorkerOptions
from perdure.engine.registry import NOTHING, Function, Registry
from perdure.engine.run_handle import RunHandle
from perdure.engine.store import RunRow, RunState
from perdure.errors import EngineClosed, InvalidFunction
from perdure.functions import effect_of
from perdure.observe import Observer
from perdure.ports import Channels, Ports, Probe, Secrets, no_probe
from perdure.queued import queued_of
from perdure.queues import Queues
from perdure.schedules import Schedules
from perdure.secrets import SecretRef
from perdure.sessions import Sessions
from perdure.upkeep import Upkeep
from perdure.urls import check_connect, location_of, place_of, shown

if TYPE_CHECKING:
    from perdure.engine.archive import ArchiveStore
    from perdure.engine.engine import Engine
    from perdure.storage.blobs import BlobStore

F = TypeVar("F", bound=Function)
I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


class App(Sessions, Schedules, Queues, Upkeep):
    """Run functions and the place where their runs live; the only wiring there is.

    `url` is `sqlite:///runs.db` for a file in the current folder, `sqlite:////var/lib/runs.db` for
    an absolute path, or `postgresql://user@host:5432/database` for a schema `perdure` there, or
    another one with `?schema=name`; tests may have `memory:`. `async with app:` opens the store and
    executes runs; `app.connect()` opens it only to start runs and look at them.

    On Temporal, it is `temporal://host:7233/namespace?task_queue=agents`, and `store` the URL of
    where runs live; `temporal` is an async function that returns a `temporalio.client.Client` for
    servers that want to know more than that.

    `worker` says how this process executes runs, until the App is opened. `busy_seconds` is how
    long a write waits for another process's. `encryption` hides what runs are given, record and
    come to, and `blobs` keeps the large ones of these values, such as `perdure.blobs.FileBlobs`;
    every process on the store needs both. `audit` gets a record for each thing that happens to an
    effect; it stays the caller's to close. `effects` are functions that `effect` declared: the
    worker asks their lookups about what is ambiguous, also before a run has called them. `types`
    are classes whose instances are stored, next to those that the annotations of run functions and
    operations name: enums, dataclasses, named tuples, msgspec Structs and pydantic models, each
    under its name or in a tuple with another one. `secrets` returns the secret of a name, for
    `SecretRef`. `channels` are where people see what runs do, such as
    `perdure.channels.ably.AblyChannels`; by default, messages of sessions are in the store. `clock`
    and `probe` are for tests: a clock that they turn by hand, and a function called at each named
    point where a crash leaves a different state.

    Raises `InvalidUrl`, `InvalidFunction` for what is no effect, and `InvalidOptions` for what is
    no class of data or has the name of another one.
    """

    def __init__(
        self,
        url: str,
        *,
        store: str | None = None,
        temporal: Callable[[], Awaitable[Any]] | None = None,
        worker: WorkerOptions | None = None,
        busy_seconds: float = 60.0,
        encryption: Keyring | None = None,
        blobs: BlobStore | None = None,
        audit: AuditSink | None = None,
        effects: Sequence[Callable[..., Any]] = (),
        types: Sequence[Named] = (),
        secrets: Secrets | None = None,
        channels: Channels | None = None,
        clock: Clock | None = None,
        probe: Probe | None = None,
    ) -> None:
        self.url = url
        self.worker = worker or WorkerOptions()
        self.observer = Observer()
        self.encryption = encryption
        self.blobs = blobs
        self.audit = audit
        self._known = KnownEffects()
        self._codec = Codec((SecretRef, *types))
        self._secrets = secrets
        self._channels = channels
        self._registry = Registry()
        for function in effects:
            self._known.learn(*effect_of(function))
            self._codec.learn(function)
            self._registry.know(function)
        self.store_url, self._dispatching = place_of(url, store)
        self.shown_url = shown(self.store_url)
        if self._dispatching is not None:
            self.shown_url += f" by {shown(url)}"
        check_connect(temporal, dispatched=self._dispatching is not None)
        self._connect = temporal
        self._location = location_of(self.store_url)
        self._busy_seconds = busy_seconds
        self._clock = clock or SystemClock()
        self._probe = probe or no_probe
        self._engine: Engine | None = None
        self._opening = False

    def run(self, *bare: Never, version: int = 0, name: str | None = None) -> Callable[[F], F]:
        """Register an `async def f(context)` or `async def f(context, input)` as a run function.

        After a crash it is called again from its start, so everything in it that reaches outside
        goes through `context`. It sees the context variables as they stood when the App was
        opened, whoever starts it. `name` (default: the function's) and `version` are what a run
        remembers of its code: raise the version when the operations it asks for change, and keep
        the old function registered until its runs have ended. Raises `InvalidFunction`.
        """
        if bare:
            raise InvalidFunction("a run function has a version: write @app.run(version=1)")
        return self._registering(name, version, is_turn=False)

    def turn(self, *bare: Never, version: int = 0, name: str | None = None) -> Callable[[F], F]:
        """Register an `async def f(context, turn)` as a run function that answers in sessions.

        `turn` is a `perdure.turn.Turn`: what was said, and where to stream the answer. It is
        started by `start_turn`, and by a server for what people post. As `run` otherwise.
        """
        if bare:
            raise InvalidFunction("a run function has a version: write @app.turn(version=1)")
        return self._registering(name, version, is_turn=True)

    def check_turn(self, name: str | None = None) -> None:
        """Raise `UnknownFunction` unless a turn of a name is registered, or just one without.

        A server that is about to serve it asks this before somebody else does.
        """
        self._registry.turn(name)

    def _registering(self, name: str | None, version: int, *, is_turn: bool) -> Callable[[F], F]:
        def register(function: F) -> F:
            self._registry.add(function, name, version, is_turn=is_turn)
            self._codec.learn(function)
            return function

        return register

    @overload
    async def start(
        self,
        function: Callable[[Context], Coroutine[Any, Any, T]],
        *,
        run_id: str | None = None,
        version: int | None = None,
        deadline_seconds: float | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> RunHandle[T]: ...
    @overload
    async def start(
        self,
        function: Callable[[Context, I], Coroutine[Any, Any, T]],
        input: I,
        *,
        run_id: str | None = None,
        version: int | None = None,
        deadline_seconds: float | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> RunHandle[T]: ...
    @overload
    async def start(
        self,
        function: str,
        input: Any = NOTHING,
        *,
        run_id: str | None = None,
        version: int | None = None,
        deadline_seconds: float | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> RunHandle[Any]: ...
    async def start(
        self,
        function: Function | str,
        input: Any = NOTHING,  # noqa: A002
        *,
        run_id: str | None = None,
        version: int | None = None,
        deadline_seconds: float | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> RunHandle[Any]:
        """Start a run and return at once.

        `input` is what an operation takes, too. With `run_id` the call is idempotent: the same id
        and input give the same run, whatever became of it; another input raises `RunConflict`.
        Without, the run gets an id of its own. By default the newest version of the function is
        started. `deadline_seconds` is how long it may take from now on, waits included; then it
        fails with `DeadlineExceeded`.

        In a `queue`, which somebody has to have declared with `App.queue`, it waits for a worker
        until the limits of the queue let it through, those with a higher `priority` before it;
        `key` is what the queue may bound by itself, such as a tenant.

        Durable when it returns: the run, fsynced; it will be executed.
        If it raises: nothing was written. `UnknownFunction`, `UnknownQueue`, `RunConflict`,
        `InvalidPayload`, `InvalidOptions`, `InvalidInvocation` for a malformed id, `EngineClosed`,
        or a `StorageError`.
        """
        queued = queued_of(queue, key, priority)
        return await self.engine.start(function, input, run_id, version, deadline_seconds, queued)

    def handle(self, run_id: str) -> RunHandle[Any]:
        """Return a handle to a run that was started earlier, in this process or any other."""
        return RunHandle(self.engine, run_id)

    @overload
    def run_sync(
        self,
        function: Callable[[Context], Coroutine[Any, Any, T]],
        *,
        run_id: str | None = None,
        version: int | None = None,
    ) -> T: ...
    @overload
    def run_sync(
        self,
        function: Callable[[Context, I], Coroutine[Any, Any, T]],
        input: I,
        *,
        run_id: str | None = None,
        version: int | None = None,
    ) -> T: ...
    @overload
    def run_sync(
        self,
        function: str,
        input: Any = NOTHING,
        *,
        run_id: str | None = None,
        version: int | None = None,
    ) -> Any: ...
    def run_sync(
        self,
        function: Function | str,
        input: Any = NOTHING,  # noqa: A002
        *,
        run_id: str | None = None,
        version: int | None = None,
    ) -> Any:
        """Start a run from a program without an event loop, wait for it and return its result.

        The App is open for this call only, and executes no runs of others. Raises as `start` and
        `RunHandle.result` do.
        """

        async def whole() -> Any:
            await self._open(work=True, only_started=True)
            try:
                handle = await self.engine.start(function, input, run_id, version)
                return await handle.result()
            finally:
                await self._close()

        with Bridge() as bridge:
            return bridge.call(whole())

    @asynccontextmanager
    async def connect(self, *, create: bool = True) -> AsyncGenerator[App]:
        """Open the store without executing anything: to start runs and to look at them.

        Without `create` there has to be one: raises `StorageMissing`.
        """
        await self._open(work=False, create=create)
        try:
            yield self
        finally:
            await self._close()

    async def __aenter__(self) -> Self:
        await self._open(work=True)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    @property
    def engine(self) -> Engine:
        """The engine of the open App; raises `EngineClosed` when it is not open."""
        if self._engine is None:
            raise EngineClosed("the App is not open: use it inside `async with app:`")
        with suppress(RuntimeError):  # there is none in this thread
            self._engine.check_loop(asyncio.get_running_loop())
        return self._engine

    @property
    def functions(self) -> Sequence[tuple[str, int]]:
        """The names and versions of the run functions registered here."""
        return self._registry.served()

    async def cancel(self, run_id: str) -> RunRow:
        """Cancel a run, or ask the worker that executes it to; return it as it stands.

        Durable when it returns: the cancellation or the request, fsynced. Raises `UnknownRun`.
        """
        return await self.engine.cancel(run_id)

    async def list(self, *, state: RunState | None = None, limit: int = 100) -> Sequence[RunRow]:
        """Return the newest runs, newest first, of any state or of one.

        A run of which something cannot be read is among them; its `unreadable` says why.
        """
        return await self.store.list_runs(state=state, limit=limit)

    async def resume(self, run_id: str) -> RunRow:
        """Let a run that failed or needs attention go on, after what stopped it was mended.

        What it recorded stays recorded, the failures of its operations too.

        Durable when it returns: the new state, fsynced. Raises `UnknownRun` or `RunErased`.
        """
        return await self.engine.resume(run_id)

    async def _open(self, *, work: bool, only_started: bool = False, create: bool = True) -> None:
        if self._engine is not None or self._opening:
            raise EngineClosed("the App is open already; open it once a process")
        self._opening = True
        try:
            engine = await self._make_engine(create=create)
            try:
                await engine.open(work=work, only_started=only_started)
            except BaseException:
                await engine.close()
                raise
            self._engine = engine
        finally:
            self._opening = False

    async def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _make_engine(self, *, create: bool) -> Engine:
        # What executes runs is loaded here, so that `import perdure` is quick.
        from perdure.engine.children import ChildRuns
        from perdure.engine.dispatched import dispatched
        from perdure.engine.engine import Engine

        store: ArchiveStore = await self._location.open(
            self._clock,
            self.observer,
            self._busy_seconds,
            self._probe,
            create=create,
            vault=vault_of(self.encryption),
            blobs=self.blobs,
        )
        dispatcher = None
        if self._dispatching is not None:
            dispatcher = self._dispatching(self._connect, self.worker.lease_seconds)
            store = dispatched(store, dispatcher, self._registry)
        # Threads of their own: operations that wait must not keep the loop's others waiting.
        threads = ThreadPoolExecutor(self.worker.concurrency, "perdure-operation")
        channels, closing = self._channels, None
        if channels is None:
            from perdure.channels.stored import StoredChannels

            channels = StoredChannels(store, store.clock)
            await channels.open()
            closing = channels.close
        ports = Ports(
            store,
            store.clock,
            self.observer,
            self._probe,
            threads,
            self.audit,
            self._known,
            self._codec,
            self._secrets,
            ChildRuns(store, self._registry, self._codec, store.clock),
            channels,
        )
        return Engine(
            store, ports, self._registry, self.worker, closing=closing, dispatcher=dispatcher
        )
