from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT
from mcp_types import INVALID_REQUEST, ErrorData

T = TypeVar("T")


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers what a server asks back, as the client of `mcp` wants them; None for nobody."""

    elicitation: ElicitationFnT | None = None
    sampling: SamplingFnT | None = None
    roots: ListRootsFnT | None = None


class Questions:
    """Counts what a server asks on a connection of its own accord, and refuses what is too much.

    It does not say for which request it asks: those that are under way allow as many together as
    they do one by one.
    """

    def __init__(self) -> None:
        self._allowed: list[int] = []
        self._asked = 0

    @contextmanager
    def allowed(self, most: int) -> Generator[None]:
        """Let a server ask `most` questions more for the time of a request."""
        self._allowed.append(most)
        try:
            yield
        finally:
            self._allowed.remove(most)
            if not self._allowed:
                self._asked = 0

    def counted(self, answers: Answers) -> Answers:
        """Return the same answers, given no more often than is allowed."""
        return Answers(
            elicitation=self._bound(answers.elicitation),
            sampling=self._bound(answers.sampling),
            roots=self._bound(answers.roots),
        )

    def _bound(self, answer: Callable[..., Awaitable[T]] | None) -> Any:
        if answer is None:
            return None

        async def bounded(*asked: Any) -> T | ErrorData:
            self._asked += 1
            if self._asked > sum(self._allowed):
                return ErrorData(code=INVALID_REQUEST, message="asked back too often")
            return await answer(*asked)

        return bounded
