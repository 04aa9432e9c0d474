from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from perdure.clock import Clock
from perdure.errors import RunSignal
from perdure.observe import log
from perdure.wording import text_of

T = TypeVar("T")

_GRACE_SECONDS: Final = 1.0
"""How long code that was told to stop is waited for."""

_THROUGH: Final = (KeyboardInterrupt, SystemExit, RunSignal)


class Failed(msgspec.Struct, frozen=True):
    """Stands for what a call did not return; `why` says so in words, `cause` is what it raised."""

    why: str
    cause: BaseException


async def call_foreign(
    function: Callable[[], Awaitable[T]], seconds: float, clock: Clock, what: str
) -> T | Failed:
    """Return what an application's function returns, or how it failed, `seconds` at most later.

    It is called in a task of its own: a cancellation that nobody asked for is a failure like any
    other, and so is a group of exceptions. Code that does not stop when it is told to is left
    behind and logged as `what`, so it must be code that only looks or only reports. Raises
    `KeyboardInterrupt`, `SystemExit` and the signals of a run as they come.
    """
    call = _Call(function)
    task = asyncio.create_task(call.make(), name=f"perdure {what}")
    in_time = False
    try:
        # Most have their answer at once, and no clock need know of them.
        await asyncio.sleep(0)
        in_time = task.done() or await _ends(task, seconds, clock)
    finally:
        if not task.done():
            await _stop(task, what)
    if isinstance(call.error, _THROUGH):
        raise call.error
    if call.error is None and task.done():
        return call.value
    error = call.error if in_time and call.error else TimeoutError(f"it took over {seconds:g} s")
    return Failed(described(error), error)


def described(error: BaseException) -> str:
    """Return the type of an exception and what it says, if it says anything."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Call(Generic[T]):
    """A call under way, and what came of it."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._function = function

    async def make(self) -> None:
        try:
            self.value = await self._function()
        except BaseException as error:  # noqa: BLE001 - who asked for it decides
            self.error = error


async def _ends(task: asyncio.Task[None], seconds: float, clock: Clock) -> bool:
    """Return whether a task ends in time."""
    alarm = asyncio.create_task(_alarm(seconds, clock))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
    return task.done()


async def _alarm(seconds: float, clock: Clock) -> None:
    await clock.sleep(seconds)


async def _stop(task: asyncio.Task[None], what: str) -> None:
    """Cancel a task, and wait a moment for its end."""
    task.cancel()
    await asyncio.wait({task}, timeout=_GRACE_SECONDS)
    if not task.done():
        log.warning("%s does not stop when it is told to, and is left behind", what)
