from __future__ import annotations

from typing import Protocol

from perdure.runtimes.temporal.request import OperationRequest


class Unavailable(Exception):
    """Nobody can say now what became of an operation; the same request may be made again."""


class UnusableAnswer(Exception):
    """What an operation came to cannot be passed on."""


class Answers(Protocol):
    """Where operations are performed, each once under its stable key."""

    async def begin(self, request: OperationRequest) -> Pending:
        """Have an operation performed, unless it was before.

        Durable when it returns: that it will be. Raises `Unavailable`, and `InvalidRequest` for
        what is too large to be carried.
        """
        ...

    async def ready(self) -> bool:
        """Return whether operations can be begun now."""
        ...


class Pending(Protocol):
    """An operation that was begun, here or by an earlier request."""

    async def record(self) -> bytes:
        """Return the document of its record, as the handler wrote it.

        What failed for good has the record of that failure. The caller compares the invocation:
        it is that of the first request under the key. Raises `Unavailable` or `UnusableAnswer`.
        """
        ...
