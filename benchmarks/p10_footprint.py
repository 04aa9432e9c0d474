from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.child import environment
from benchmarks.measure import RUNS, paired
from benchmarks.row import Figure, Row, Setting, Target

FLOOR = "import sqlite3, asyncio, json"
_OURS = "import perdure"
_PROBE = """
import time
began = time.perf_counter()
{statement}
seconds = time.perf_counter() - began
pages = int(open("/proc/self/statm").read().split()[1])
print([seconds, pages])
"""
_IDLE = """
import asyncio, sys
from perdure import App

async def main():
    app = App("sqlite:///" + sys.argv[1])

    @app.run(version=1)
    async def work(context):
        pass

    async with app:
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def measure(setting: Setting) -> list[Figure]:
    """Time imports in fresh interpreters, and look at a worker that has nothing to do."""
    cache = setting.path("p10")
    for statement in (FLOOR, _OURS):
        fresh_import(statement, cache)
    floors: list[tuple[float, int]] = []
    ours: list[tuple[float, int]] = []
    for _ in range(setting.scale(21, RUNS)):
        floors.append(fresh_import(FLOOR, cache))
        ours.append(fresh_import(_OURS, cache))
    return [*_imports(ours, floors), *_idle(cache, setting.scale(5, 1))]


def _imports(ours: list[tuple[float, int]], floors: list[tuple[float, int]]) -> list[Figure]:
    times = [seconds * 1000 for seconds, _ in ours]
    floor_times = [seconds * 1000 for seconds, _ in floors]
    sizes = [size / 1e6 for _, size in ours]
    floor_sizes = [size / 1e6 for _, size in floors]
    return [
        Figure(
            label="import perdure",
            value=median(times),
            unit="ms",
            floor=median(floor_times),
            floor_unit="ms",
            ratio=paired(times, floor_times),
            targets=[Target(1.6, of="ratio")],
            name="import",
            samples=times,
            floor_samples=floor_times,
        ),
        Figure(
            label="the same: memory",
            value=median(sizes),
            unit="MB",
            floor=median(floor_sizes),
            floor_unit="MB",
            ratio=paired(sizes, floor_sizes),
            targets=[Target(28.0)],
            name="memory",
            samples=sizes,
            floor_samples=floor_sizes,
        ),
    ]


def fresh_import(statement: str, cache: Path) -> tuple[float, int]:
    """Return the seconds that an import takes in a fresh interpreter, and the resident bytes."""
    program = _PROBE.format(statement=statement)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment(), "PYTHONPYCACHEPREFIX": str(cache / "compiled")},
        capture_output=True,
        check=True,
        text=True,
    )
    seconds, pages = json.loads(done.stdout)
    return seconds, pages * os.sysconf("SC_PAGE_SIZE")


def watched(pid: int, seconds: float) -> tuple[float, float]:
    """Look at a process that has nothing to do; return its megabytes and its share of a core."""
    time.sleep(0.5)
    before = _processor_seconds(pid)
    time.sleep(seconds)
    used = (_processor_seconds(pid) - before) / seconds
    statm = Path(f"/proc/{pid}/statm").read_text().split()
    return int(statm[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, used


def _idle(folder: Path, seconds: float) -> list[Figure]:
    process = subprocess.Popen(
        [sys.executable, "-c", _IDLE, str(folder / "runs.db")],
        env={**environment(), "PYTHONPYCACHEPREFIX": str(folder / "compiled")},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        size, used = watched(process.pid, seconds)
    finally:
        process.kill()
        process.communicate()
    return [
        Figure(
            label="an idle worker: memory",
            value=size,
            unit="MB",
            targets=[Target(40.0)],
            name="idle",
        ),
        Figure(
            label="an idle worker: share of one core", value=used * 100, unit="%", name="idle share"
        ),
    ]


def _processor_seconds(pid: int) -> float:
    """Return the time that a process has been on a processor, to the nanosecond."""
    return (
        sum(
            int((task / "schedstat").read_text().split()[0])
            for task in Path(f"/proc/{pid}/task").iterdir()
        )
        / 1e9
    )


ROW = Row(
    number="P10",
    work="import and idle worker",
    floor=f"`{FLOOR}` in a fresh interpreter",
    measure=measure,
)
