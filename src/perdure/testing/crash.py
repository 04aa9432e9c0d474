"""Crashes at named points: a program that recovers from each of them recovers from any."""

from __future__ import annotations

import os
import signal
import threading


class CrashPoints:
    """A probe that lists the points a program passes, and crashes at none of them.

    Pass it as `App(url, probe=CrashPoints())`. A point is a name and what it concerns, such as
    `operation.called call/3`: `operation.call` before an operation's handler is called and
    `operation.called` after it returned or raised, `commit.begin` before a write is committed and
    `commit.done` after. Writes that share a commit each have a point of their own, so the list
    does not depend on which of them were ready together.
    """

    def __init__(self) -> None:
        self.passed: list[str] = []

    def __call__(self, point: str) -> None:
        """Note a point."""
        self.passed.append(point)

    def crashes(self) -> list[tuple[str, int]]:
        """Return what `CrashAt` takes to crash at each point passed, in order."""
        return [
            (point, self.passed[: index + 1].count(point))
            for index, point in enumerate(self.passed)
        ]


class CrashAt:
    """A probe that kills its own process when a point is passed for the `nth` time, from 1.

    `point` is a whole point, `operation.called call/3`, or its first words, `operation.called`;
    the empty text means any. The process ends by SIGKILL: no handler and no `finally` runs.
    """

    def __init__(self, point: str = "", nth: int = 1) -> None:
        self._point = point
        self._nth = nth
        self._passed = 0
        # Points are passed in the event loop and in the thread that commits.
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        """End the process if this is the point."""
        if self._point not in {"", point} and not point.startswith(f"{self._point} "):
            return
        with self._lock:
            self._passed += 1
            if self._passed == self._nth:
                os.kill(os.getpid(), signal.SIGKILL)
