from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.child import Child


class SoakFailed(Exception):
    """The soak cannot go on; what happened after that says nothing."""


Restart = Callable[[], Awaitable[None]]


@dataclass
class Workers:
    """Processes that are replaced as soon as they die, whoever killed them."""

    start: Callable[[], Child]
    living: list[Child] = field(default_factory=list)
    died: int = 0
    """How many ended without having been killed: none may."""

    def fill(self, count: int) -> None:
        """Start what is missing; what ended by itself is counted and replaced."""
        ended = [child for child in self.living if not child.alive]
        self.died += len(ended)
        self.living = [child for child in self.living if child.alive]
        while len(self.living) < count:
            self.living.append(self.start())

    def kill(self, child: Child) -> None:
        self.living.remove(child)
        child.kill()

    def end(self) -> None:
        while self.living:
            self.kill(self.living[-1])


@dataclass(frozen=True)
class Server:
    """A database server that is stopped without warning and started again."""

    data: Path
    pg_ctl: str

    async def restart(self) -> None:
        """Do both; raises `SoakFailed` when it does not come back."""
        try:
            failed = await self._restart()
        except OSError as error:
            raise SoakFailed(f"{self.pg_ctl} could not be started: {error}") from error
        if failed:
            raise SoakFailed(
                f"{self.pg_ctl} could not restart the server in {self.data}: look at its log"
            )

    async def _restart(self) -> int:
        owner = self.data.stat().st_uid
        words = ("-D", str(self.data), "-m", "immediate", "-w", "restart")
        process = await asyncio.create_subprocess_exec(
            self.pg_ctl,
            *words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.data.parent,
            # The server refuses to run as root.
            user=owner if os.geteuid() != owner else None,
        )
        return await process.wait()


@dataclass(frozen=True)
class Faults:
    """How often what happens, in seconds on average; `restart` stops a server and starts it."""

    workers: int
    kill_seconds: float
    restart_seconds: float
    restart: Restart | None


async def rage(
    faults: Faults, seconds: float, workers: Workers, chance: random.Random, done: Counter[str]
) -> None:
    """Kill workers and restart the server at random moments for so long, counting each."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    restart_at = loop.time() + chance.uniform(0.5, 1.5) * faults.restart_seconds
    while loop.time() < ends_at:
        await asyncio.sleep(chance.uniform(0.2, 1.8) * faults.kill_seconds)
        workers.fill(faults.workers)
        await asyncio.to_thread(workers.kill, chance.choice(workers.living))
        done["worker killed"] += 1
        workers.fill(faults.workers)
        if faults.restart is not None and loop.time() > restart_at:
            await faults.restart()
            done["server restarted"] += 1
            restart_at = loop.time() + chance.uniform(0.5, 1.5) * faults.restart_seconds
