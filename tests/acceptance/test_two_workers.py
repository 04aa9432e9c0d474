"""Two live processes on one file: one owner at a time, and quick succession when it goes."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Context, WorkerOptions, effect
from perdure.clock import SystemClock
from tests.acceptance.children import freeze, note, notes, query, running, until
from tests.acceptance.samples import LONG, amount
from tests.storages import Places, app_at, held, on_server, url_of

_STARTS = amount("STARTS", usual=300, full=1000)
_LEASE_SECONDS = 3.0
_TWIN = WorkerOptions(name="twin", lease_seconds=_LEASE_SECONDS)


def _url(folder: Path) -> str:
    return url_of(folder)


# --- nobody dies ---------------------------------------------------------------------------------


def start_all(folder: Path, seed: int) -> None:
    """Start every run, as the other process does at the same time, and wait for all of them."""
    app = App(_url(folder))

    @app.run(version=1)
    async def two_steps(context: Context, number: int) -> int:
        await context.call(step, context.run_id, 1)
        return await context.call(step, context.run_id, 2) + number

    async def step(run_id: str, number: int) -> int:
        note(folder / "steps.log", run=run_id, step=number)
        await asyncio.sleep(0.01)
        return number

    async def main() -> None:
        numbers = list(range(_STARTS))
        random.Random(seed).shuffle(numbers)
        async with app:
            note(folder / "open.log")
            while len(notes(folder / "open.log")) < 2:
                await asyncio.sleep(0.01)
            starts = [app.start(two_steps, number, run_id=f"run-{number}") for number in numbers]
            handles = await asyncio.gather(*starts)
            results = await asyncio.gather(*(handle.result() for handle in handles))
        assert results == [number + 2 for number in numbers]

    asyncio.run(main())


def test_two_processes_that_start_the_same_runs_never_start_a_step_twice(folder: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(running(folder, start_all, folder, n)) for n in (1, 2)]
        pids = {worker.pid for worker in workers}
        for worker in workers:
            worker.succeed()
    steps = notes(folder / "steps.log")
    counts = Counter((line["run"], line["step"]) for line in steps)
    assert len(counts) == 2 * _STARTS
    assert set(counts.values()) == {1}
    assert {line["pid"] for line in steps} <= pids
    assert query(folder / "runs.db", "SELECT ending, count(*) FROM attempts GROUP BY ending") == [
        ("completed", _STARTS)
    ]


# --- one is killed, frozen or cut off ------------------------------------------------------------


def work(
    folder: Path, run_id: str | None, options: WorkerOptions = _TWIN, *, blocking: bool = False
) -> None:
    """Execute runs until killed, and start one. Its slow step ends from its second start on."""
    app = app_at(folder, worker=options)
    log = folder / "steps.log"

    @app.run(version=1)
    async def quick_and_slow(context: Context) -> str:
        await context.call(quick, context.run_id)
        return await context.call(slow, context.run_id)

    async def quick(run_id: str) -> None:
        note(log, run=run_id, step="quick")

    @effect(support="idempotent")
    async def slow(run_id: str) -> str:
        again = bool(notes(log, run=run_id, step="slow"))
        note(log, run=run_id, step="slow")
        while again and (folder / "wait").exists():
            await asyncio.sleep(0.01)
        if again:
            return "by the second"
        if blocking:
            while not (folder / "thawed").exists():
                time.sleep(0.01)
            return "by the first"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note(log, run=run_id, step="cancelled")
            raise
        return "by the first"

    async def main() -> None:
        async with app:
            note(folder / "open.log")
            if run_id is not None:
                handle = await app.start(quick_and_slow, run_id=run_id)
                note(log, run=run_id, step="result", result=await handle.result())
            await asyncio.Event().wait()

    asyncio.run(main())


def test_what_a_killed_worker_was_doing_goes_on_at_once_in_another(folder: Path) -> None:
    took: list[float] = []
    log = folder / "steps.log"
    defaults = WorkerOptions()
    with running(folder, work, folder, None, defaults) as survivor:
        until((folder / "open.log").exists, survivor)
        for run_id in ("run-1", "run-2", "run-3", "run-4", "run-5"):
            slow = partial(notes, log, run=run_id, step="slow")
            with running(folder, work, folder, run_id, defaults) as victim:
                until(slow, victim)
                killed_at = time.monotonic()
                victim.signal(signal.SIGKILL)
                until(lambda slow=slow: len(slow()) == 2, survivor)
            first, second = slow()
            assert (first["pid"], second["pid"]) == (victim.pid, survivor.pid)
            took.append(second["at"] - killed_at)
            until(lambda run_id=run_id: _run(folder, run_id)[0] == "completed", survivor)
            assert _run(folder, run_id) == ("completed", '"by the second"', 2)
            assert len(notes(log, run=run_id, step="quick")) == 1
    print(f"goes on after {sorted(took)[len(took) // 2]:.3f} s, at worst {max(took):.3f} s")
    assert max(took) < defaults.lease_seconds / 2  # and so not by the end of its lease


@LONG
@pytest.mark.parametrize("blocking", [False, True], ids=["awaiting", "blocking"])
def test_a_worker_frozen_past_its_lease_writes_nothing_when_it_thaws(
    folder: Path, blocking: bool
) -> None:
    """T33: the two have the same name, so that only the generation tells them apart."""
    freeze_and_thaw(folder, blocking=blocking)


def freeze_and_thaw(folder: Path, *, blocking: bool) -> None:
    """Freeze a worker that executes a run until another one does, and see what it does then."""
    log = folder / "steps.log"
    with ExitStack() as stack:
        frozen = stack.enter_context(
            running(folder, work, folder, "run-1", _TWIN, blocking=blocking)
        )
        until(lambda: notes(log, step="slow"), frozen)
        other = stack.enter_context(running(folder, work, folder, None))
        until(lambda: len(notes(folder / "open.log")) == 2, frozen, other)
        (folder / "wait").touch()
        freeze(frozen, folder / "runs.db")
        until(lambda: len(notes(log, step="slow")) == 2, other)
        before = _whole(folder)
        (folder / "thawed").touch()
        frozen.signal(signal.SIGCONT)
        # It is a worker again after whatever it still had to write.
        lives = "SELECT 1 FROM workers WHERE gone = 0 AND pid = ?"
        until(lambda: query(folder / "runs.db", lives, frozen.pid), frozen)
        assert _whole(folder) == before
        (folder / "wait").unlink()
        # It tells its caller what the run came to in the other process.
        until(lambda: notes(log, step="result"), frozen)
        (result,) = notes(log, step="result")
        assert (result["pid"], result["result"]) == (frozen.pid, "by the second")
        assert [line["pid"] for line in notes(log, step="slow")] == [frozen.pid, other.pid]
        # A body that blocks its loop sees no cancellation; what it came to is refused.
        cancelled = [] if blocking else [frozen.pid]
        assert [line["pid"] for line in notes(log, step="cancelled")] == cancelled
        assert _attempts(folder, "run-1") == [("twin", "lost"), ("twin", "completed")]


def test_a_short_time_without_the_database_costs_nobody_a_run(folder: Path) -> None:
    log = folder / "steps.log"
    options = WorkerOptions(lease_seconds=6.0)
    with (
        running(folder, work, folder, "run-1", options) as owner,
        running(folder, work, folder, None, options) as other,
    ):
        until(
            lambda: notes(log, step="slow") and len(notes(folder / "open.log")) == 2, owner, other
        )
        with held(folder):
            time.sleep(options.lease_seconds * 0.4)  # two renewals
        leases = "SELECT min(lease_until) FROM workers WHERE gone = 0"
        ((lease_until,),) = query(folder / "runs.db", leases)
        until(lambda: query(folder / "runs.db", leases) > [(lease_until,)], other)
        assert _run(folder, "run-1") == ("running", None, 1)
        assert len(notes(log, step="slow")) == 1
        assert owner.alive


def test_a_worker_cut_off_from_the_database_stops_before_its_lease_ends(folder: Path) -> None:
    log = folder / "steps.log"
    options = WorkerOptions(lease_seconds=3.0)
    with (
        running(folder, work, folder, "run-1", options) as owner,
        running(folder, work, folder, None, options) as other,
    ):
        until(
            lambda: notes(log, step="slow") and len(notes(folder / "open.log")) == 2, owner, other
        )
        with held(folder):
            ((lease_until,),) = query(
                folder / "runs.db", "SELECT lease_until FROM workers WHERE pid = ?", owner.pid
            )
            until(lambda: notes(log, step="cancelled"), owner)
            time.sleep(options.lease_seconds / 3)
        (cancelled,) = notes(log, step="cancelled")
        if on_server(folder):
            lease_until += time.monotonic() - time.time()
        assert cancelled["at"] < lease_until
        print(f"stops {lease_until - cancelled['at']:.3f} s before the end of its lease")
        until(lambda: _run(folder, "run-1")[0] == "completed", other)
        assert _run(folder, "run-1")[1] == '"by the second"'
        assert len(notes(log, step="quick")) == 1
        assert len(notes(log, step="slow")) == 2


# --- clocks that jump ----------------------------------------------------------------------------


class JumpingClock(SystemClock):
    """A system clock that somebody sets forth or back."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return super().now() + self.seconds


def tick(folder: Path, starts: bool, jump_seconds: float) -> None:
    """Execute runs of many steps until killed; the clock jumps in the middle of the first."""
    clock = JumpingClock()
    app = App(_url(folder), worker=_TWIN, clock=clock)
    log = folder / "steps.log"

    @app.run(version=1)
    async def ticking(context: Context, delay_seconds: float) -> None:
        for number in range(12):
            await context.call(step, context.run_id, number)
        await context.sleep(delay_seconds)
        await context.call(step, context.run_id, 12)

    async def step(run_id: str, number: int) -> None:
        note(log, run=run_id, step=number)
        while number == 5 and len(notes(folder / "open.log")) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    async def main() -> None:
        while not starts and not notes(log, step=0):  # by then the run is the starter's
            await asyncio.sleep(0.01)
        async with app:
            note(folder / "open.log")
            if starts:
                await app.start(ticking, 0.2, run_id="run-1")
            while not notes(log, step=5) or len(notes(folder / "open.log")) < 2:
                await asyncio.sleep(0.01)
            clock.seconds = jump_seconds
            await app.handle("run-1").result()
            if starts:
                await app.start(ticking, 1.0, run_id="run-2")
            await asyncio.Event().wait()

    asyncio.run(main())


@LONG
def test_clocks_that_jump_steal_nothing_and_keep_nothing_for_ever(
    places: Places, tmp_path: Path
) -> None:
    """T34: five minutes forth or back, in the owner or in the other process."""
    jumps = [(300.0, 0.0), (-300.0, 0.0), (0.0, 300.0), (0.0, -300.0)]
    folders = [tmp_path / f"{owner:+.0f},{other:+.0f}" for owner, other in jumps]
    for each in folders:
        each.mkdir()
        places.use(each)
    with ThreadPoolExecutor(len(jumps)) as pool:
        took = list(pool.map(_jump, folders, jumps))
    print(f"a frozen worker's run goes on after {max(took):.3f} s")
    assert max(took) < 60  # and so by no clock that jumped


def _jump(folder: Path, jumps: tuple[float, float]) -> float:
    log = folder / "steps.log"
    with (
        running(folder, tick, folder, True, jumps[0]) as owner,
        running(folder, tick, folder, False, jumps[1]) as other,
    ):
        until(lambda: notes(log, run="run-1", step=12), owner)
        assert [line["step"] for line in notes(log, run="run-1")] == list(range(13))
        assert {line["pid"] for line in notes(log, run="run-1")} == {owner.pid}
        # Frozen in the middle of a delay, it owns the run only for as long as its lease lasts.
        until(
            lambda: query(
                folder / "runs.db",
                "SELECT 1 FROM timers JOIN runs USING (run_number) WHERE run_id = 'run-2'",
            ),
            owner,
        )
        its_own = notes(log, run="run-2")[0]["pid"] == owner.pid  # either may have got it
        frozen, free = (owner, other) if its_own else (other, owner)
        frozen_at = time.monotonic()
        freeze(frozen, folder / "runs.db")
        until(lambda: _run(folder, "run-2")[0] == "completed", free)
        steps = notes(log, run="run-2")
        assert [line["step"] for line in steps] == list(range(13))
        assert [line["pid"] for line in steps] == [frozen.pid] * 12 + [free.pid]
        assert _attempts(folder, "run-2") == [("twin", "lost"), ("twin", "completed")]
        return steps[-1]["at"] - frozen_at


# --- looking from outside ------------------------------------------------------------------------


def _run(folder: Path, run_id: str) -> tuple[Any, ...]:
    (row,) = query(
        folder / "runs.db",
        "SELECT state, CAST(output AS TEXT), generation FROM runs WHERE run_id = ?",
        run_id,
    )
    return row


def _attempts(folder: Path, run_id: str) -> list[tuple[Any, ...]]:
    return query(
        folder / "runs.db",
        "SELECT name, ending FROM attempts JOIN runs USING (run_number)"
        " JOIN workers ON workers.holder = attempts.holder WHERE run_id = ?"
        " ORDER BY attempts.generation",
        run_id,
    )


def _whole(folder: Path) -> list[list[tuple[Any, ...]]]:
    """Return everything that a run's writes could have changed."""
    tables = ("runs", "attempts", "records", "timers", "pieces", "receipts")
    return [query(folder / "runs.db", f"SELECT * FROM {table}") for table in tables]
