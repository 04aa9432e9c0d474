from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from perdure.demo.report import Moment, Report
from perdure.demo.shop import Shop
from perdure.demo.story import RUN_ID
from perdure.errors import CommandError, RunFailed

_PATIENCE_SECONDS: Final = 120.0
_reports: Final = msgspec.json.Decoder(Report)


class Turn:
    """One turn of the agent over two processes: the first is killed, the second goes on.

    Both are loaded before the first begins, as two workers of a service would be.
    """

    def __init__(self, folder: Path, point: str, model: str | None = None) -> None:
        self._folder = folder
        self._point = point
        self._model = model

    async def moments(self) -> AsyncGenerator[Moment]:
        """Run the turn and yield what happens, up to `finished` or `failed`.

        Raises `CommandError` when the model cannot be had, and `RunFailed` when a worker ends
        without having been killed or having finished.
        """
        Shop(self._folder / "shop.db").create()
        points = [self._point] if self._point == "none" else [self._point, "none"]
        async with self._workers(points) as workers:
            for number, worker in enumerate(workers, 1):
                first = await _next(worker)
                if first.what == "refused":
                    raise CommandError(first.text)
                if first.what == "ended":
                    raise self._failed(f"worker-{number}", first)
                yield Moment(number, worker.pid, first)
            for number, worker in enumerate(workers, 1):
                killed = False
                async for report in _execute(worker):
                    if report.what == "ended":
                        raise self._failed(f"worker-{number}", report)
                    yield Moment(number, worker.pid, report)
                    killed = report.what == "killed"
                if not killed:
                    break

    @asynccontextmanager
    async def _workers(self, points: list[str]) -> AsyncGenerator[list[Process]]:
        workers: list[Process] = []
        try:
            for number, point in enumerate(points, 1):
                workers.append(await self._spawn(f"worker-{number}", point))
            yield workers
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.wait()

    def _failed(self, name: str, report: Report) -> RunFailed:
        message = f"{name} of the demo {report.text}; see {self._folder / name}.log"
        return RunFailed(RUN_ID, code="WorkerEnded", type_name="WorkerEnded", message=message)

    async def _spawn(self, name: str, point: str) -> Process:
        model = [] if self._model is None else [self._model]
        words = ["-m", "perdure.demo.worker", name, str(self._folder), point, *model]
        with (self._folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *words, stdin=PIPE, stdout=PIPE, stderr=log
            )


async def _execute(worker: Process) -> AsyncGenerator[Report]:
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
        if report.what in {"finished", "failed"}:
            worker.stdin.close()
            await worker.wait()
            return
        if report.what == "ended":
            return


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
