from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from perdure.blocking import Bridge
from perdure.errors import EngineClosed

R = TypeVar("R")
T = TypeVar("T")


class Background:
    """A loop in a thread of its own, for any number of other threads; their first call starts it.

    Its thread dies with the process: who exits without `end` only leaves work undone.
    """

    def __init__(self) -> None:
        self.callers: set[Caller[Any]] = set()  # touched in the loop alone
        self._switch = threading.Lock()
        self._bridge: Bridge | None = None
        self._ending = contextlib.ExitStack()

    @property
    def running(self) -> bool:
        """Whether the loop was started and has not ended."""
        return self._bridge is not None

    def call(self, main: Callable[[Caller[T]], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop, and here what it asks its caller for; return its result.

        An interrupt cancels the coroutine and is raised when that has ended; a second one at once.
        Raises `EngineClosed` when the loop was ended meanwhile.
        """
        return Caller(self, main).result()

    def post(self, function: Callable[[], None], *, start: bool = True) -> bool:
        """Call a function in the loop; tell whether there is one to do so."""
        with self._switch:
            if self._bridge is None and start:
                self._bridge = self._ending.enter_context(Bridge())
            if self._bridge is None:
                return False
            self._bridge.post(function)
            return True

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what threads wait for, without waiting for their functions, and end with `last`.

        Whoever calls meanwhile waits, and starts another loop.
        """
        with self._switch:
            self._end(last)

    def pause(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep others from calling until `proceed`; end the loop, unless a thread waits for it."""
        self._switch.acquire()
        if self._bridge is None or self._bridge.inside():
            return
        if not self._bridge.call(self._is_busy()):
            self._end(last)

    def proceed(self) -> None:
        """Let others call again."""
        self._switch.release()

    def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._bridge is None:
            return
        try:
            with self._ending:
                self._bridge.call(self._finish(last))
        finally:
            self._bridge = None

    async def _finish(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        callers = list(self.callers)
        for caller in callers:
            caller.cancel()
        for caller in callers:
            await caller.over.wait()
        await last()

    async def _is_busy(self) -> bool:
        return bool(self.callers)


class Caller(Generic[T]):
    """A thread that waits for a coroutine of the loop, and runs the functions it asks for.

    They run in the thread that called, so what belongs to a thread is found there.
    """

    def __init__(
        self, background: Background, main: Callable[[Caller[T]], Coroutine[Any, Any, T]]
    ) -> None:
        self.over = asyncio.Event()
        self._background = background
        self._main = main
        self._asked: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._errand: _Errand | None = None
        self._task: asyncio.Task[T] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()

    # In the thread.

    def result(self) -> T:
        """Run errands until the coroutine has ended, and return its result."""
        try:
            self._background.post(self._begin)
            while (errand := self._asked.get()) is not None:
                errand.run()
                self._check_process()
                self._tell(errand.ended.set)
        except BaseException:
            self._stop()
            raise
        assert self._task is not None
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise EngineClosed(
                "the receipts were closed while this call was under way; call again to find out"
                " what became of its effect"
            ) from None

    def _stop(self) -> None:
        """Cancel the coroutine and wait for its end; what it still asks for is not run."""
        if self._process == os.getpid() and self._background.post(self.cancel, start=False):
            while self._asked.get() is not None:
                pass

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise EngineClosed(
                "this process was forked by a function that sends, and the effect is its parent's:"
                " such a child has to end with os._exit"
            )

    def _tell(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was ended, and nobody waits
            self._loop.call_soon_threadsafe(function)

    # In the loop.

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._main(self))
        self._task.add_done_callback(self._let_go)
        self._background.callers.add(self)

    def _let_go(self, _: asyncio.Task[T]) -> None:
        self._background.callers.discard(self)
        self.over.set()
        self._asked.put(None)

    def cancel(self) -> None:
        """Cancel the coroutine; the function that the thread runs goes on, and is not waited for.

        To be called once: a second cancellation would cut short what the first one writes.
        """
        if self._task is None:
            self._asked.put(None)
            return
        self._task.cancel()
        if self._errand is not None:
            self._errand.ended.set()

    async def ask(self, function: Callable[[], R]) -> R:
        """Have the thread run a function and return its result.

        Who is cancelled leaves at once, and the function goes on unless it has not begun.
        """
        errand = self._errand = _Errand(function)
        self._asked.put(errand)
        try:
            await errand.ended.wait()
        except asyncio.CancelledError:
            errand.wanted = False
            raise
        return errand.outcome()

    async def ask_out(self, function: Callable[[], R]) -> R:
        """Do as `ask`, and leave only when the function has ended, also when cancelled."""
        try:
            return await self.ask(function)
        except asyncio.CancelledError:
            await self.overdue()
            raise

    async def overdue(self) -> Any:
        """Wait for the end of what was told to stop; return what it returned, or None."""
        assert self._errand is not None
        await self._errand.ended.wait()
        return None if self._errand.wanted else self._errand.result


class _Errand:
    """A function that the loop wants a thread to run, and what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.wanted = True
        self.ended = asyncio.Event()
        self.result: Any = None
        self._function = function
        self._error: Exception | None = None

    def run(self) -> None:
        if not self.wanted:  # told to stop before it began
            return
        try:
            self.result = self._function()
        except Exception as error:  # noqa: BLE001 - it belongs to the loop's side
            self._error = error

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self.result
