from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Bridge:
    """One thread with one event loop, for programs that have none.

    Used as a context manager: the loop runs inside the block.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="perdure-bridge", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        asyncio.run_coroutine_threadsafe(_settle(), self._loop).result()
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        while not self._stopping:
            # A run that raises it must not take the loop along, or its caller waits for ever.
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()

    def inside(self) -> bool:
        """Tell whether this is the loop's own thread."""
        return threading.current_thread() is self._thread

    def post(self, function: Callable[[], None]) -> None:
        """Call a function in the loop and do not wait for it."""
        self._loop.call_soon_threadsafe(function)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result; an interrupt cancels it first."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _settle() -> None:
    """End what the block left behind, so that closing the loop loses nothing silently."""
    here = asyncio.current_task()
    # What an interrupt cancelled may be closing an App; a second cancellation would cut that short.
    while ending := {task for task in asyncio.all_tasks() if task.cancelling()} - {here}:
        await asyncio.wait(ending)
    left = asyncio.all_tasks() - {here}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
