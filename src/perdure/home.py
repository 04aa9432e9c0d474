from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.background import Background
from perdure.errors import EngineClosed


class Home:
    """The event loop that an open store belongs to: one of the program's, or one that it keeps.

    SQLite knows the files of its process by inode, so after a fork whatever a child opens would
    share locks that only its parent has, and lose what it writes. A kept loop that nobody waits for
    is therefore ended before a fork, by `close`, and started again by its next use. What cannot be
    closed is `forsaken` in the child, where it is refused from then on.
    """

    def __init__(
        self, close: Callable[[], Coroutine[Any, Any, None]], forsaken: Callable[[], None]
    ) -> None:
        self.background = Background()
        self._close = close
        self._forsaken = forsaken
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inherited: tuple[object, ...] = ()
        self._forks_watched = False
        self._unclean = False

    def here(self) -> bool:
        """Tell whether the running loop is the one."""
        return self._loop is asyncio.get_running_loop()

    def enter(self) -> None:
        """Make the running loop the one.

        Raises `EngineClosed` when there is another, and in a child that cannot open any.
        """
        self._check_process()
        if self._loop is not None and not self.here():
            raise EngineClosed(
                "these receipts were opened in another event loop, or by guard_sync: close them"
                " there, or open others for this one"
            )
        self._watch_forks()
        self._loop = asyncio.get_running_loop()

    def leave(self) -> None:
        """Belong to no loop; raises `EngineClosed` in a loop that must not end the kept one."""
        if self.background.running and self._loop is not None and not self.here():
            raise EngineClosed("these receipts were opened by guard_sync: call close_sync")
        self._loop = None

    def keep(self) -> Background:
        """Return the loop that is kept for programs without one.

        Raises `EngineClosed` inside an event loop, when one of the program's is the one, and in a
        child that cannot open any.
        """
        self._check_process()
        if _in_event_loop():
            raise EngineClosed(
                "guard_sync would stop this thread's event loop for as long as it takes: await"
                " guard here"
            )
        if self._loop is not None and not self.background.running:
            raise EngineClosed(
                "these receipts are open in an event loop: await guard there, or open others for"
                " guard_sync"
            )
        self._watch_forks()
        return self.background

    def end(self) -> None:
        """End the kept loop, and close what belongs to it; without one, do nothing."""
        if self.background.running:
            self.keep().end(self._close)

    def _check_process(self) -> None:
        if self._inherited:
            raise EngineClosed(
                "this process was forked while these receipts were in use, and would lose what it"
                " writes: fork before their first use or while nothing is under way, and not from"
                " an event loop, or start the process anew (spawn)"
            )

    def _watch_forks(self) -> None:
        if self._forks_watched or not hasattr(os, "register_at_fork"):
            return
        self._forks_watched = True
        os.register_at_fork(
            before=_weakly(self._before_fork),
            after_in_parent=_weakly(self._after_fork),
            after_in_child=_weakly(self._after_fork_in_child),
        )

    def _before_fork(self) -> None:
        self._unclean = True  # until it was closed, whatever keeps it from being
        self.background.pause(self._close)
        self._unclean = self.background.running or self._loop is not None

    def _after_fork(self) -> None:
        self.background.proceed()

    def _after_fork_in_child(self) -> None:
        if self._unclean:
            # Kept, unused: to close the parent's handles here would meddle with its files.
            self._inherited = (self._loop, self.background)
            self._forsaken()
        self._loop = None
        self.background = Background()


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return what calls a method for as long as its object lives."""
    weak = weakref.WeakMethod(method)

    def call() -> None:
        alive = weak()
        if alive is not None:
            alive()

    return call


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
