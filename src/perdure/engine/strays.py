from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

_TURNS: Final = 50
"""Of the loop, in which a task may end that was cancelled."""

_gathered: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("perdure_strays", default=None)


class Strays:
    """The tasks that some code makes and leaves behind; what they come to is not logged.

    Tasks are noticed by the loop's task factory, which is another one meanwhile, and only those
    that are made within the block, or by tasks that are.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        factory = loop.get_task_factory()
        if not isinstance(factory, _Factory):
            factory = _Factory(factory)
            loop.set_task_factory(factory)
        factory.users += 1
        self._factory = factory
        self._token = _gathered.set(self._tasks)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _gathered.reset(self._token)
        self._factory.users -= 1
        loop = asyncio.get_running_loop()
        if not self._factory.users and loop.get_task_factory() is self._factory:
            loop.set_task_factory(self._factory.earlier)

    async def end(self) -> None:
        """Cancel the tasks that have not ended; one that goes on in spite of it is left alone."""
        told = set[asyncio.Task[Any]]()
        for _ in range(_TURNS):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                return
            for task in left:
                if task not in told:
                    task.cancel()
            told.update(left)
            await asyncio.sleep(0)


class _Factory:
    """Makes tasks as the earlier factory did, and notices them."""

    def __init__(self, earlier: Any) -> None:
        self.earlier = earlier
        self.users = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, /, **options: Any) -> Any:
        if self.earlier is None:
            task = asyncio.Task(work, loop=loop, **options)
        else:
            task = self.earlier(loop, work, **options)
        gathered = _gathered.get()
        if gathered is not None:
            gathered.add(task)
            task.add_done_callback(_hear)
        return task


def _hear(task: asyncio.Task[Any]) -> None:
    # What nobody asks a task for is otherwise written to the log.
    if not task.cancelled():
        task.exception()
