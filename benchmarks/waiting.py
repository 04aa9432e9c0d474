"""What runs take that wait, and how late timers fire: `python -m benchmarks.waiting`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.storages import query, size, storages, table_of
from perdure import App, Context, RunState, WorkerOptions

_AT_ONCE = 200
_WORKER = WorkerOptions(linger_seconds=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 when a timer was lost or fired twice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="that wait for a message")
    parser.add_argument("--timers", type=int, default=100_000, help="that are due at once")
    parser.add_argument("--paced", type=int, default=3_000, help="that are due one after another")
    parser.add_argument("--per-second", type=int, default=100, help="how many of these are due")
    parser.add_argument("--postgres", metavar="URL", help="a server in which databases may be made")
    parser.add_argument("--folder", type=Path, help="where to write: a folder on a real disk")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    lost = 0
    for name, storage in storages(options.postgres).items():
        print(name)
        try:
            for work in (
                lambda url: _parked(url, options.runs),
                lambda url: _due(url, options.timers),
                lambda url: _paced(url, options.paced, options.per_second),
            ):
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    lost += asyncio.run(work(storage.create(Path(folder))))
        finally:
            storage.drop()
    return int(lost > 0)


async def _parked(url: str, runs: int) -> int:
    """Put runs away, and tell what each takes of this process and of the disk."""
    app = App(url, worker=_WORKER)

    @app.run(version=1)
    async def waits(context: Context) -> str:
        return await context.wait_for("news")

    async with app:
        # What the first ones need is no run's own.
        await _start_all(app, "waits", 200, "warming")
        await _until_count(app, RunState.SUSPENDED, 200)
        memory, disk = _resident_bytes(), size(url)
        began = time.perf_counter()
        await _start_all(app, "waits", runs, "run")
        await _until_count(app, RunState.SUSPENDED, 200 + runs)
        seconds = time.perf_counter() - began
        held = query(url, f"SELECT count(*) FROM {table_of(url, 'runs')} WHERE holder IS NOT NULL")
        grown, weight = _resident_bytes() - memory, size(url) - disk
        cpu = time.process_time()
        await asyncio.sleep(5)
        share = (time.process_time() - cpu) / 5
        began = time.perf_counter()
        await app.send("run-0", "news", "hello")
        await app.handle("run-0").result()
        woken = time.perf_counter() - began
    print(f"  {runs} runs that wait: {runs / seconds:.0f}/s put away, {held[0][0]} owned")
    print(f"    each {max(0, grown) / runs:.0f} bytes of memory, {weight / runs:.0f} on the disk")
    print(
        f"    their worker {share * 100:.1f} % of a core; a message to the end {woken * 1e3:.0f} ms"
    )
    return 0


async def _due(url: str, timers: int) -> int:
    """Let timers come due at one moment, and tell how long it takes to fire them all."""
    due = time.time() + 10 + timers / 200
    app, fired = _sleeping(url, lambda _: due)
    async with app:
        began = time.perf_counter()
        await _start_all(app, "sleeps", timers, "run")
        await _until_count(app, RunState.SLEEPING, timers)
        seconds = time.perf_counter() - began
        await asyncio.sleep(max(0.0, due - time.time()))
        await _until_count(app, RunState.COMPLETED, timers)
    firing = max(at for _, at in fired) - due
    print(f"  {timers} timers: {timers / seconds:.0f}/s put away, {timers / firing:.0f}/s fired")
    return _miscounted(fired, timers)


async def _paced(url: str, timers: int, per_second: int) -> int:
    """Let timers come due one after another, and tell how late each is."""
    began = time.time() + 5 + timers / 400
    app, fired = _sleeping(url, lambda number: began + number / per_second)
    async with app:
        await _start_all(app, "sleeps", timers, "run")
        ready = time.time() < began
        await _until_count(app, RunState.COMPLETED, timers)
    late = sorted(at - began - number / per_second for number, at in fired)
    middle, most = late[len(late) // 2], late[len(late) * 99 // 100]
    print(
        f"  {timers} timers, {per_second} a second: {middle * 1e3:.0f} ms late at the median,"
        f" {most * 1e3:.0f} at the 99th percentile, {late[0] * 1e3:.0f} to {late[-1] * 1e3:.0f}"
        + ("" if ready else "; they were due before all were started")
    )
    return _miscounted(fired, timers)


def _sleeping(url: str, due: Callable[[int], float]) -> tuple[App, list[tuple[int, float]]]:
    app = App(url, worker=_WORKER)
    fired: list[tuple[int, float]] = []

    @app.run(version=1)
    async def sleeps(context: Context, number: int) -> None:
        await context.sleep_until(datetime.fromtimestamp(due(number), UTC))
        fired.append((number, time.time()))

    return app, fired


def _miscounted(fired: Sequence[tuple[int, float]], timers: int) -> int:
    lost = timers - len({number for number, _ in fired})
    again = len(fired) - timers + lost
    print(f"    {lost} lost, {again} fired again")
    return lost + again


async def _start_all(app: App, function: str, count: int, name: str) -> None:
    numbers = iter(range(count))

    async def start_some() -> None:
        for number in numbers:
            given = (number,) if function == "sleeps" else ()
            await app.start(function, *given, run_id=f"{name}-{number}")

    starters: list[Awaitable[None]] = [start_some() for _ in range(_AT_ONCE)]
    await asyncio.gather(*starters)


async def _until_count(app: App, state: RunState, count: int) -> None:
    while (await app.store.count_runs())[state] < count:
        await asyncio.sleep(0.25)


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    raise SystemExit(main())
