from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Final, Literal

import msgspec

from perdure.errors import CommandError

_PATIENCE_SECONDS: Final = 60.0
_FAREWELL_SECONDS: Final = 5.0


class Worker(msgspec.Struct, frozen=True):
    """A worker as people see it: which one it is, from 1, and what it does since when."""

    number: int
    pid: int
    state: Literal["starting", "working", "killed"]
    since: float


class Crew:
    """The processes that execute runs: one after another, and each until it is killed.

    The next one is loaded before it is needed, as a second worker of a service would be.
    """

    def __init__(self, folder: Path, model: str | None) -> None:
        self._folder = folder
        self._words = [str(folder), *([model] if model else [])]
        self._working: Process | None = None
        self._workers: dict[int, Worker] = {}

    @property
    def workers(self) -> list[Worker]:
        """Every worker that has begun so far, oldest first."""
        return list(self._workers.values())

    def kill(self) -> bool:
        """Kill the worker as `kill -9` does; return whether there was one."""
        if self._working is None or self._working.returncode is not None:
            return False
        self._working.send_signal(signal.SIGKILL)
        return True

    async def keep_working(self) -> None:
        """Let one worker execute runs, and another one once it was killed, until cancelled.

        Raises `CommandError` when a worker ends by itself.
        """
        spare = await self._spawn(1)
        try:
            for number in itertools.count(1):
                self._working, spare = spare, await self._spawn(number + 1)
                await self._watch(number, self._working)
        finally:
            await _dismiss([worker for worker in (self._working, spare) if worker])

    async def _watch(self, number: int, worker: Process) -> None:
        """Let a worker begin, and return once it was killed."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        self._note(number, worker, "starting")
        worker.stdin.write(b"go\n")
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                if await worker.stdout.readline():
                    self._note(number, worker, "working")
        except TimeoutError as error:
            raise CommandError(
                f"worker {number} of the demo did nothing for {_PATIENCE_SECONDS:.0f} seconds"
            ) from error
        if await worker.wait() >= 0:
            said = self._log_of(number).read_text("utf-8", "replace").strip().splitlines()
            why = f": {said[-1]}" if said else ""
            raise CommandError(f"worker {number} of the demo ended by itself{why}")
        self._note(number, worker, "killed")

    def _note(
        self, number: int, worker: Process, state: Literal["starting", "working", "killed"]
    ) -> None:
        self._workers[number] = Worker(number, worker.pid, state, time.time())

    def _log_of(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    async def _spawn(self, number: int) -> Process:
        words = ["-m", "perdure.demo.chat.worker", f"worker-{number}", *self._words]
        with self._log_of(number).open("wb") as log:
            # In a group of its own: Ctrl-C is for the demo, which then lets its workers end.
            return await asyncio.create_subprocess_exec(
                sys.executable, *words, stdin=PIPE, stdout=PIPE, stderr=log, process_group=0
            )


async def _dismiss(workers: list[Process]) -> None:
    """Let workers end, and kill those that do not."""
    for worker in workers:
        if worker.stdin is not None:
            worker.stdin.close()
    try:
        async with asyncio.timeout(_FAREWELL_SECONDS):
            for worker in workers:
                await worker.wait()
    except TimeoutError:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
