from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from perdure.demo.plan import Plan
from perdure.demo.report import Moment, Report
from perdure.demo.shop import Shop
from perdure.demo.story import RUN_ID
from perdure.errors import CommandError, RunFailed

_PATIENCE_SECONDS: Final = 120.0
_ENDS: Final = {"finished", "failed", "ended"}
_reports: Final = msgspec.json.Decoder(Report)


class Turn:
    """One turn of the agent over two processes: the first is killed, the second goes on.

    Both are loaded before the first begins, as two workers of a service would be. With `leaves`,
    a run that is parked is left as it is.
    """

    def __init__(self, folder: Path, plan: Plan, *, leaves: bool = False) -> None:
        self._folder = folder
        self._plan = plan
        self._leaves = leaves

    def begin(self) -> AsyncGenerator[Moment]:
        """Run the turn and yield what happens, up to `finished`, `failed` or the last `parked`.

        After `parked`, the worker goes on as soon as the next moment is asked for.
        Raises `CommandError` when the model cannot be had, and `RunFailed` when a worker ends
        without having been killed or having finished.
        """
        self._plan.save(self._folder)
        Shop(self._folder / "shop.db").create()
        point = self._plan.kill_at
        return self._moments(1, [point] if point == "none" else [point, "none"])

    def go_on(self) -> AsyncGenerator[Moment]:
        """Let another worker go on with a turn that was left; yield and raise as `begin` does."""
        return self._moments(1 + max(moment.worker for moment in self._plan.moments), ["none"])

    async def _moments(self, first: int, points: Sequence[str]) -> AsyncGenerator[Moment]:
        async with self._workers(first, points) as workers:
            for number, worker in enumerate(workers, first):
                loaded = await _next(worker)
                if loaded.what == "refused":
                    raise CommandError(loaded.text)
                yield self._moment(number, worker, loaded)
            for number, worker in enumerate(workers, first):
                report = None
                async for report in self._execute(worker):
                    yield self._moment(number, worker, report)
                if report is None or report.what != "killed":
                    break

    @asynccontextmanager
    async def _workers(self, first: int, points: Sequence[str]) -> AsyncGenerator[list[Process]]:
        workers: list[Process] = []
        try:
            for number, point in enumerate(points, first):
                workers.append(await self._spawn(f"worker-{number}", point))
            yield workers
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.wait()

    async def _execute(self, worker: Process) -> AsyncGenerator[Report]:
        """Let a worker begin and yield its reports; kill it where it waits for that."""
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        while True:
            report = await _next(worker)
            yield report
            if report.what == "waiting":
                worker.kill()
                yield Report("killed", number=await worker.wait())
                return
            if report.what in _ENDS or (report.what == "parked" and self._leaves):
                worker.stdin.close()
                await worker.wait()
                return
            if report.what == "parked":
                worker.stdin.write(b"go\n")

    def _moment(self, number: int, worker: Process, report: Report) -> Moment:
        if report.what == "ended":
            name = f"worker-{number}"
            message = f"{name} of the demo {report.text}; see {self._folder / name}.log"
            raise RunFailed(RUN_ID, code="WorkerEnded", type_name="WorkerEnded", message=message)
        return Moment(number, worker.pid, report)

    async def _spawn(self, name: str, point: str) -> Process:
        words = ["-m", "perdure.demo.worker", name, str(self._folder), point]
        with (self._folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *words, stdin=PIPE, stdout=PIPE, stderr=log
            )


async def _next(worker: Process) -> Report:
    assert worker.stdout is not None
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            line = await worker.stdout.readline()
            if line:
                return _reports.decode(line)
            return Report("ended", f"ended by itself with code {await worker.wait()}")
    except TimeoutError:
        return Report("ended", f"did nothing for {_PATIENCE_SECONDS:.0f} seconds")
