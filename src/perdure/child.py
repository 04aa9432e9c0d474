from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

CHILD_HANDLER: Final = "perdure.child"
"""The handler id of what starts a run from inside of another one."""


class NotGiven(enum.Enum):
    """What stands for an input that was not given."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN


class ChildRun(Generic[T]):
    """A run that was started from inside of another one."""

    def __init__(self, run_id: str, ended: Callable[[], Awaitable[T]]) -> None:
        self.run_id = run_id
        self._ended = ended

    async def result(self) -> T:
        """Wait for the run to end and return what its function returned.

        The run that waits takes nothing but rows meanwhile.

        Durable when it returns: what it returned, in the journal of the run that waits.
        If it raises: `RunFailed` or `RunCancelled`, now and on every replay, or as
        `Context.wait_for`. A result can be asked for once.
        """
        return await self._ended()
