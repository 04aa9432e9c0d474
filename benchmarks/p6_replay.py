from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

from benchmarks.child import Child, say
from benchmarks.measure import RUNS, a_second
from benchmarks.payload import PAYLOAD_BYTES, text
from benchmarks.row import Figure, NotDurable, Row, Setting, Target
from benchmarks.storages import POSTGRES, SQLITE, query, table_of
from perdure import App, Context, WorkerOptions, operation

_RECORDS = 2000
_RUN_ID = "recorded"


def measure(setting: Setting) -> list[Figure]:
    """Kill a run behind its recorded operations and time how fast fresh processes repeat them."""
    url = setting.database("p6").url
    record(url, _RECORDS, PAYLOAD_BYTES)
    heard = [replay(url, _RECORDS, PAYLOAD_BYTES) for _ in range(setting.scale(9, RUNS))]
    speed = a_second(
        f"replay of {_RECORDS} operations in a fresh process, load included",
        [_RECORDS / told["seconds"] for told in heard],
        [_RECORDS / told["floor_seconds"] for told in heard],
        [Target(120_000, at_least=True)],
        "rate",
    )
    return [speed, _memory(setting)]


def _memory(setting: Setting) -> Figure:
    records, size = setting.scale(10_000, 500), 64 * 1024
    url = setting.database("p6-large").url
    record(url, records, size)
    told = replay(url, records, size)
    return Figure(
        label=f"memory peak while {records} outputs of {size // 1024} KB are replayed",
        value=told["peak_bytes"] / 1e6,
        unit="MB",
        targets=[Target(64.0)],
    )


def record(url: str, records: int, size: int) -> None:
    with Child("p6_replay", "record", url, records, size) as child:
        child.hear(600.0)
        child.kill()


def replay(url: str, records: int, size: int) -> Any:
    with Child("p6_replay", "replay", url, records, size) as child:
        told = child.hear(60.0)
        child.end()
    if told["called"]:
        raise NotDurable(f"{told['called']} recorded operations were called again")
    return told


def child(part: str, url: str, records: str, size: str) -> None:
    """Record operations until there is one that never returns, or measure up to that one."""
    asyncio.run(_child(part, url, int(records), int(size)))


async def _child(part: str, url: str, records: int, size: int) -> None:
    times = {"committed": 0.0, "called": 0.0}
    called, over = 0, asyncio.Event()

    def probe(point: str) -> None:
        if point.startswith("commit.done "):
            times["committed"] = time.perf_counter()
        elif point.startswith("operation.call ") and part == "replay":
            # The last commit before the first call was the claim of the run.
            times["called"] = time.perf_counter()

    @operation(read_only=True)
    async def produce(payload: str, seed: int) -> str:
        nonlocal called
        called += 1
        return payload if size == PAYLOAD_BYTES else text(size, seed)

    @operation(read_only=True)
    async def hold() -> None:
        seconds = times["called"] - times["committed"]
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        floor_seconds = _select(url) if part == "replay" else 0.0
        say(
            {
                "seconds": seconds,
                "floor_seconds": floor_seconds,
                "peak_bytes": peak_bytes,
                "called": called,
            }
        )
        if part == "replay":
            over.set()
        await asyncio.Event().wait()

    app = App(url, probe=probe, worker=WorkerOptions(drain_seconds=0.0))
    payload = text(PAYLOAD_BYTES)

    @app.run(version=1)
    async def long(context: Context) -> None:
        for number in range(records):
            await context.call(produce, payload, number)
        await context.call(hold)

    async with app:
        if part == "record":
            await app.start(long, run_id=_RUN_ID)
        # A replay gives the run back: one that workers die of again and again is parked.
        await over.wait()


def _select(url: str) -> float:
    """Return how long one SELECT of what the replay had to read takes, connection and all."""
    began = time.perf_counter()
    query(
        url,
        "SELECT step_id, sequence, kind, handler_id, input_sha256, status, attempt, payload"
        f" FROM {table_of(url, 'records')}"
        f" WHERE run_number = (SELECT run_number FROM {table_of(url, 'runs')} WHERE run_id = ?)"
        " ORDER BY record_number",
        _RUN_ID,
    )
    return time.perf_counter() - began


ROW = Row(
    number="P6",
    work="replay of a long run",
    floor="one SELECT of the same records",
    measure=measure,
    storages=[SQLITE, POSTGRES],
)
