from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final, TypeAlias

import msgspec

from perdure.errors import DuplicateOperation

Place: TypeAlias = tuple[str, int]
"""The step id and the sequence of an operation within its run."""

_LOOK_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 1.0


class Rest(msgspec.Struct, frozen=True):
    """What somebody waits for: a time, in wall seconds, UTC, messages by their names, or both.

    `until` is None where the time has no end.
    """

    until: float | None
    awaits: frozenset[str] = frozenset()

    def beside(self, other: Rest) -> Rest:
        """Return what two wait for: the earlier time, and the messages of both."""
        ends = [until for until in (self.until, other.until) if until is not None]
        return Rest(min(ends, default=None), self.awaits | other.awaits)


class Activity:
    """What an execution of a run has under way, and whether it may begin more.

    `cancelled` says that its worker has cancelled its code, which may still clean up, and `over`
    how many of its waits came to an end.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.root: asyncio.Task[Any] | None = None
        self.interrupted = False
        self.cancelled = False
        self._live: dict[Place, asyncio.Task[Any]] = {}
        self._done: set[Place] = set()
        self._acting: set[Place] = set()
        self._held: set[Place] = set()
        self._cut: set[Place] = set()
        self._resting: dict[Place, Rest] = {}
        self._branches: dict[str, str] = {}
        self._owners: dict[asyncio.Task[Any], set[str]] = {}
        self._turns = 0
        self.over = 0
        self._news = asyncio.Event()
        self._rested = asyncio.Event()
        self._stopping = False
        self._when_quiet: Callable[[], None] | None = None

    def begin(self, place: Place) -> None:
        """Count an operation as under way; raises `DuplicateOperation` for one that was before."""
        if place in self._live or place in self._done:
            raise DuplicateOperation(
                f"operation {self._run_id}/{place[0]}/{place[1]} is asked for twice in one"
                " execution; an identity names one place in the code: give the second one its own"
            )
        self._live[place] = this_task()

    def end(self, place: Place) -> None:
        """Count an operation as under way no longer."""
        del self._live[place]

    def act(self, place: Place) -> None:
        """Count a handler as under way, until `rest` once what it came to is recorded."""
        self._acting.add(place)

    def rest(self, place: Place) -> None:
        """Count a handler as under way no longer."""
        self._acting.remove(place)
        self._held.discard(place)
        self._rested.set()
        if not self._acting and self._when_quiet is not None:
            self._when_quiet()

    @contextmanager
    def resting(self, places: tuple[Place, ...], rest: Rest) -> Generator[None]:
        """Count operations as waiting for what another execution can as well wait for."""
        waiting = dict.fromkeys(places, rest)
        self._turns += 1
        self._resting.update(waiting)
        try:
            yield
            self.over += 1
        finally:
            self._turns += 1
            for place in waiting:
                self._resting.pop(place, None)

    def idle(self) -> tuple[int, Rest] | None:
        """Return what is waited for where nothing else goes on; None if more does.

        With it comes a number that another one takes the place of once anything has gone on.
        """
        if not self._resting or self._acting or not self._live.keys() <= self._resting.keys():
            return None
        waiting = self._waiting_branches()
        if any(not waiting & owned for task, owned in self._owners.items() if not task.done()):
            # A branch that awaits something else would never come to its end.
            return None
        return self._turns, reduce(Rest.beside, self._resting.values())

    def branch(self, namespace: str, *, of: str) -> None:
        """Note that a namespace is that of a branch of another one."""
        self._branches[namespace] = of

    def own(self, namespace: str, task: asyncio.Task[Any]) -> None:
        """Note which task asks for the operations of a namespace."""
        self._owners.setdefault(task, set()).add(namespace)

    def _waiting_branches(self) -> set[str]:
        """Return the namespaces in which something is waited for, or below which it is."""
        waiting = {""}
        for step_id, _ in self._resting:
            parts = step_id.split(".")
            beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            namespace = next((name for name in beginnings if name in self._branches), "")
            while namespace not in waiting:
                waiting.add(namespace)
                namespace = self._branches.get(namespace, "")
        return waiting

    def news(self) -> asyncio.Event:
        """Return what is set as soon as something may have come for those that wait."""
        return self._news

    def tell(self) -> None:
        """Let those that wait look again."""
        heard, self._news = self._news, asyncio.Event()
        heard.set()

    async def others_rest(self, place: Place, above: tuple[Place, ...]) -> None:
        """Wait until no handler is under way but those that wait for a stop like this one.

        `place` is the operation that stops the run, and `above` those that it is below of.
        """
        self._held.update((place, *above))
        self._rested.set()
        while self._acting - self._held:
            self._rested.clear()
            await self._rested.wait()

    def cut(self, above: tuple[Place, ...]) -> None:
        """Note that operations were refused what they asked for below themselves."""
        self._cut.update(above)

    def was_cut(self, place: Place) -> bool:
        """Return whether an operation was refused something, and so has no outcome."""
        return place in self._cut

    def done(self, place: Place) -> None:
        """Remember that an operation was recorded by this execution."""
        self._done.add(place)

    def is_done(self, place: Place) -> bool:
        """Return whether this execution has recorded an operation."""
        return place in self._done

    def is_being_cancelled(self) -> bool:
        """Return whether the task that the run's function is called in is cancelled, or is here."""
        root = self.root
        return root is None or root.cancelling() > 0 or root is asyncio.current_task()

    def beside(self, place: Place | None = None) -> bool:
        """Return whether other operations than this one are under way."""
        return len(self._live) > (place in self._live)

    def refuses(self, *, nested: bool) -> bool:
        """Return whether an operation may not begin, because the execution is stopping.

        What a handler under way asks for below itself is still done, so that it can end.
        """
        refused = self._stopping and not (nested and len(self._acting) > 0)
        # Remembered, because code that swallows the refusal comes to an end that is none.
        self.interrupted = self.interrupted or refused
        return refused

    @property
    def stopping(self) -> bool:
        """Whether what is cut short from now on may not be the doing of the run's code."""
        return self._stopping or self.cancelled

    def stop(self, when_quiet: Callable[[], None]) -> None:
        """Begin nothing more; call `when_quiet` once no handler is under way."""
        self._stopping = True
        if self._acting:
            self._when_quiet = when_quiet
        else:
            when_quiet()

    async def settle(self) -> None:
        """End what the code of the run left behind when it ended itself.

        Its operations are cancelled and waited for, and further ones are refused: a run that has
        ended, or that another worker goes on with, must not act any more.
        """
        self._stopping = True
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        told: dict[asyncio.Task[Any], float] = {}
        while left := {task for task in self._live.values() if task is not here}:
            for task in left:
                # Once, for it may need time to clean up; and again where it made nothing of that.
                if loop.time() - told.get(task, -math.inf) >= _PATIENCE_SECONDS:
                    told[task] = loop.time()
                    task.cancel()
            # Not until the tasks end: one that swallows its cancellation may never do that.
            await asyncio.wait(left, timeout=_LOOK_SECONDS)


def this_task() -> asyncio.Task[Any]:
    """Return the task that is running."""
    task = asyncio.current_task()
    assert task is not None
    return task
