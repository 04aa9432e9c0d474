from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.005


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `AssertionError` unless two values are equal; `what` says of what they are."""
    if found != wanted:
        raise AssertionError(f"{what}: expected {wanted!r}, found {found!r}")


def ensure(holds: object, what: str) -> None:
    """Raise `AssertionError` unless something holds; `what` says what that is."""
    if not holds:
        raise AssertionError(f"{what}: it does not hold")


@contextmanager
def refusal(
    kind: type[BaseException] | tuple[type[BaseException], ...], what: str
) -> Generator[None]:
    """Raise `AssertionError` unless the block raises an exception of a kind, or of one of some."""
    try:
        yield
    except kind:
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    named = " or ".join(each.__name__ for each in kinds)
    raise AssertionError(f"{what}: expected {named}, and nothing was raised")


async def soon(told: Callable[[], Awaitable[bool]], what: str) -> None:
    """Return as soon as something holds; raise `AssertionError` when it takes too long."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not await told():
        if time.monotonic() > ends:
            raise AssertionError(f"{what}: not within {_PATIENCE_SECONDS:.0f} seconds")
        await asyncio.sleep(_LOOK_SECONDS)


async def within(work: Awaitable[T], what: str, seconds: float | None = None) -> T:
    """Return what something comes to; raise `AssertionError` when it takes too long.

    `seconds` is how long that is, None for as long as any wait may take.
    """
    seconds = _PATIENCE_SECONDS if seconds is None else seconds
    patience = asyncio.timeout(seconds)
    try:
        async with patience:
            return await work
    except TimeoutError as error:
        if not patience.expired():
            raise
        raise AssertionError(f"{what}: not within {seconds:.0f} seconds") from error
