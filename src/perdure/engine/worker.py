from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

import msgspec

from perdure.engine.children import cancel_below, is_cancelled
from perdure.engine.chores import Chore
from perdure.engine.claims import Claims
from perdure.engine.execution import Execution, StopReason, tell
from perdure.engine.lease import Lease
from perdure.engine.options import WorkerOptions
from perdure.engine.reconciler import BackgroundReconciler
from perdure.engine.registry import Registry
from perdure.engine.returns import Returns
from perdure.engine.stalled import check_key, given_back, read_journal
from perdure.engine.store import ClaimedRun, NewRun, RunEnd, RunState, RunStore, StartedRun
from perdure.engine.ticks import Ticks
from perdure.engine.workers import WorkerNews
from perdure.errors import LeaseLost, StorageError
from perdure.fence import Fence
from perdure.observe import log
from perdure.perform import Performer
from perdure.ports import Ports

if TYPE_CHECKING:
    from perdure.engine.showings import Showings

_PATIENCE_SECONDS: Final = 5.0


class Worker:
    """Claims runs and executes them, for as long as it owns them.

    One that is `driven` claims those that it is asked to take, and looks for none by itself.
    """

    def __init__(
        self,
        store: RunStore,
        ports: Ports,
        registry: Registry,
        options: WorkerOptions,
        settled: Callable[[str, RunEnd], None],
        *,
        only_started: bool = False,
        driven: bool = False,
    ) -> None:
        self._store = store
        self._registry = registry
        self._options = options
        self._ports = ports
        self._clock = ports.clock
        self._observer = ports.observer
        self._settled = settled
        self._driven = driven
        self._lease: Lease | None = None
        self._executions: dict[str, Execution] = {}
        self._returns = Returns(store, lambda: self._closing)
        self._claims = Claims(
            store,
            registry,
            options.concurrency,
            lambda: len(self._executions),
            only_started=only_started,
        )
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._strays: AbstractSet[tuple[str, int]] = frozenset()
        self._chores: set[asyncio.Task[None]] = set()
        self._swept_at = float("-inf")
        self._beside: Sequence[Chore] = ()
        self._showings: Showings | None = None
        self._closing = False
        self._ticks = Ticks(store, registry, ports)

    def executes(self, run_id: str) -> bool:
        """Return whether this worker executes a run right now, and will say how it ends."""
        return (execution := self._executions.get(run_id)) is not None and not execution.over

    async def open(self) -> None:
        """Become known to the store and take a lease.

        Durable when it returns: the lease, fsynced.
        """
        seconds = self._options.lease_seconds
        asked_at = self._clock.monotonic()
        holder = await self._store.register_worker(self._options.name, seconds)
        self._lease = Lease(
            self._store,
            holder,
            seconds,
            asked_at,
            self._clock,
            heard=lambda news: self._call_loop(lambda: self._hear(news)),
            lost=lambda: self._call_loop(self._lose_all),
        )
        self._beside = self._look_after(self._lease)

    def _look_after(self, lease: Lease) -> Sequence[Chore]:
        reconciler = BackgroundReconciler(self._ports, lease)
        seconds = self._options.reconcile_seconds
        chores = [Chore("effects are reconciled", reconciler.look, seconds, self._clock)]
        if self._ports.channels is not None and self._registry.has_turns:
            from perdure.engine.showings import Showings  # it loads the sessions

            self._showings = Showings(self._store, self._ports)
            sweep, seconds = self._showings.sweep, self._options.sweep_seconds
            chores.append(Chore("sessions hear of ends", sweep, seconds, self._clock))
        return chores

    async def tick(self, *, changed: bool) -> None:
        """Take over from the dead and claim what waits; called again and again.

        `changed` says that somebody wrote to the store since the last call.
        """
        if self._closing:
            return
        if self._lease is None:
            await self.open()
        now = self._clock.monotonic()
        if now - self._swept_at >= self._options.sweep_seconds:
            self._swept_at = now
            assert self._lease is not None
            await self._claims.look_again(self._lease.holder)
            released = await self._store.sweep(self._lease.holder)
            self._observer.count("perdure_run_recovered_total", released)
            woken = await self._store.wake_runs()
            if self._claims.everything:
                woken += await self._ticks.sweep()
            self._claims.backlog = self._claims.backlog or released + woken > 0
        if changed:
            self._claims.backlog = True
            await self._look_for_cancels()
            for execution in list(self._executions.values()):
                execution.tell()
        if not self._driven and self._claims.backlog and (holder := self._holder) is not None:
            await self._claims.take(holder, self._begin)
        self._look_for_idle()
        for chore in self._beside:
            chore.tick()

    def _look_for_idle(self) -> None:
        """Stop runs whose time is over, and those that only wait: rows are enough for these."""
        # A place that another run waits for is needed at once.
        at_once = self._claims.backlog and self._claims.free <= 0
        now = self._clock.now()
        for execution in list(self._executions.values()):
            if execution.reason is None and execution.late(now):
                # Once: its code may still clean up.
                execution.stop(StopReason.DEADLINE)
            elif execution.overstays():
                execution.drain()
            elif execution.idles(self._clock, self._options.linger_seconds, at_once=at_once):
                execution.drain(StopReason.WAITING)

    async def start(self, run: NewRun) -> StartedRun:
        """Write a run unless its id exists, and execute it here if there is a place for it.

        Durable when it returns: the run and its claim, fsynced.
        """
        self._claims.want(run.run_id)
        holder = self._holder
        if holder is None or self._driven:
            return await self._store.start_run(run, None)
        with self._claims.places(1):
            started = await self._store.start_run(run, holder)
            if started.claimed is not None:
                self._begin(started.claimed)
        return started

    def execution(self, run_id: str) -> asyncio.Task[None] | None:
        """Return the execution of a run here, which the lease may outlive, or None."""
        execution = self._executions.get(run_id)
        return None if execution is None else execution.task

    async def take(self, run_id: str, queue: str | None) -> asyncio.Task[None] | None:
        """Claim one run that waits for a worker, and return its execution.

        In a `queue`, that is the first one of it, which may be another. None where nothing can be
        claimed now. Durable when it returns: the claim, fsynced.
        """
        holder = self._holder
        self._claims.backlog = self._claims.free <= 0
        if holder is None:
            return None
        begun = await self._claims.take_one(holder, run_id, queue, self._begin)
        return None if begun is None else self.execution(begun)

    def _begin(self, claim: ClaimedRun) -> None:
        self._observer.count("perdure_run_claimed_total")
        log.info(
            "run %s: %s %s@%s, attempt %s",
            claim.fence.run_id,
            "goes on with" if claim.recovered else "starts",
            claim.function,
            claim.version,
            claim.fence.generation,
        )
        function = self._registry.find(claim.function, claim.version)
        execution = Execution(claim, function)
        self._executions[claim.fence.run_id] = execution
        # Not in the context of who started the run: after a crash there would be another one.
        execution.task = asyncio.create_task(
            self._execute(execution),
            name=f"perdure {claim.fence.run_id}",
            context=self._context.copy(),
        )

    async def close(self) -> None:
        """Stop every execution, give the runs back and give up the lease.

        Durable when it returns: the release, fsynced.
        """
        self._closing = True
        for chore in self._beside:
            await chore.close()
        await self._drain()
        for execution in list(self._executions.values()):
            execution.stop(StopReason.CLOSING)
        await self._wait_for_executions()
        lease, self._lease = self._lease, None
        if lease is not None:
            await asyncio.to_thread(lease.stop)
            if self._chores:
                await asyncio.wait(self._chores)
            try:
                await self._store.retire_worker(lease.holder)
            except StorageError as error:
                log.warning("worker %s leaves its runs to its lease's end: %s", lease.holder, error)

    async def _drain(self) -> None:
        for execution in list(self._executions.values()):
            execution.drain()
        tasks = [entry.task for entry in self._executions.values() if entry.task]
        if tasks and self._options.drain_seconds:
            await asyncio.wait(tasks, timeout=self._options.drain_seconds)

    async def _wait_for_executions(self) -> None:
        # Without a limit: a run that were given back while its code still acts would act twice.
        while tasks := [entry.task for entry in self._executions.values() if entry.task]:
            _, pending = await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
            if pending:
                names = ", ".join(sorted(self._executions))
                log.warning("waiting for operations that ignore their cancellation: %s", names)

    @property
    def _holder(self) -> str | None:
        """The holder under which a run may be claimed right now, or None."""
        if self._claims.free <= 0 or self._closing or self._lease is None:
            return None
        return self._lease.holder

    async def _execute(self, execution: Execution) -> None:
        claim = execution.claim
        run_id = claim.fence.run_id
        try:
            try:
                end = await self._outcome(execution)
            except LeaseLost:
                execution.reason, end = StopReason.LOST, None
        except Exception as error:  # noqa: BLE001 - a bug must not strand the run
            unexpected = not isinstance(error, StorageError)
            log.error("run %s stops here, to go on later: %s", run_id, error, exc_info=unexpected)
            locked = await self._claims.lacks_key(claim.fence.holder, error)
            await self._give_back(execution, locked=locked)
        else:
            if end is not None:
                self._returns.forget(run_id)
                if end.state is RunState.CANCELLED:
                    await cancel_below(self._store, run_id)
                tell(run_id, end)
                execution.over = True
                self._settled(run_id, end)
                if self._showings is not None and execution.turn is not None and end.state.ended:
                    await self._showings.tell(execution.turn, end, claim.fence.generation)
            elif execution.reason is StopReason.WAITING:
                await self._park(execution)
            elif execution.reason is StopReason.CLOSING:
                log.info("run %s: given back, to go on later", run_id)
                if not self._closing:
                    await self._give_back(execution)
            else:
                self._observer.count("perdure_lease_lost_total")
                log.warning("run %s: this worker does not own it any more", run_id)
        finally:
            await execution.leave()
            if self._executions.get(run_id) is execution:
                del self._executions[run_id]

    async def _outcome(self, execution: Execution) -> RunEnd | None:
        claim = execution.claim
        lease = self._lease
        if lease is None or lease.holder != claim.fence.holder:
            return None
        journal, problem = await read_journal(self._store, claim)
        performer = Performer(claim.fence, journal, self._ports, lease)
        if self._showings is not None and execution.turn is not None:
            performer.showing = await execution.show(self._showings, self._cancelled_there)
        if problem is None:
            if execution.late(self._clock.now()):
                execution.stop(StopReason.DEADLINE)
            if claim.parent is not None and await is_cancelled(self._store, claim.parent):
                # It may have been started after that was asked of the others.
                execution.stop(StopReason.CANCELLED)
            performer.deadline_at = claim.deadline_at
            execution.given_back = await given_back(self._store, claim)
            end = await execution.run(performer)
        else:
            end = RunEnd(RunState.NEEDS_ATTENTION, problem=problem)
        if end is None:
            return None
        if end.state is RunState.NEEDS_ATTENTION:
            await check_key(self._store, end.cause)
            await execution.suspend()
        end = msgspec.structs.replace(end, executed=performer.executed, replayed=performer.replayed)
        try:
            state = await performer.tenure.insist(
                lambda: self._store.end_run(claim.fence, end), lambda: self._closing
            )
        except LeaseLost:
            return None
        return msgspec.structs.replace(end, state=state)

    async def _park(self, execution: Execution) -> None:
        fence = execution.claim.fence
        executed, replayed = execution.counts
        try:
            rest = execution.rest(self._clock.now())
            if rest.awaits:
                await execution.suspend()
            state = await self._store.park_run(fence, rest, executed=executed, replayed=replayed)
        except LeaseLost:
            self._observer.count("perdure_lease_lost_total")
            return
        except StorageError as error:
            log.error("run %s could not be put away, and goes on: %s", fence.run_id, error)
            await self._give_back(execution)
            return
        log.info("run %s: %s", fence.run_id, state.value)
        self._returns.forget(fence.run_id)
        self._claims.backlog = self._claims.backlog or state is RunState.PENDING

    async def _give_back(self, execution: Execution, *, locked: bool = False) -> None:
        cancelled = execution.reason is StopReason.CANCELLED
        await self._returns.give_back(execution.claim.fence, at_once=cancelled, locked=locked)

    async def _give_back_all(self, holder: str, strays: AbstractSet[tuple[str, int]]) -> None:
        # After a blocked loop, the news may come before the reply to the claim that it is about.
        await self._claims.land()
        left = strays - self._executed()
        await self._returns.give_back_all(Fence(run_id, holder, number) for run_id, number in left)

    async def _look_for_cancels(self) -> None:
        if self._lease is not None and self._executions:
            self._cancel(await self._store.read_cancels(self._lease.holder))

    def _hear(self, news: WorkerNews) -> None:
        self._cancel(news.cancelled)
        # Owned, and yet not executed: what was claimed for a caller that was cancelled meanwhile,
        # or could not be given back. Twice in a row, since a claim is on its way for a moment.
        strays = news.owned - self._executed()
        lease = self._lease
        if lease is not None and strays & self._strays:
            chore = self._loop.create_task(self._give_back_all(lease.holder, strays & self._strays))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)
        self._strays = strays

    def _executed(self) -> set[tuple[str, int]]:
        return {(name, one.claim.fence.generation) for name, one in self._executions.items()}

    def _cancel(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            if (execution := self._executions.get(run_id)) and execution.reason is None:
                execution.stop(StopReason.CANCELLED)

    async def _cancelled_there(self, run_id: str) -> None:
        with suppress(StorageError):  # it ends as cancelled all the same
            await self._store.request_cancel(run_id)
        self._cancel([run_id])

    def _lose_all(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        log.warning("worker %s lost its lease and stops its runs", lease.holder)
        for execution in list(self._executions.values()):
            execution.stop(StopReason.LOST)

    def _call_loop(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)
