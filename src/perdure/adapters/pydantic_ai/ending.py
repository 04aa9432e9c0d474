from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from perdure.declaration import Reported, Verdict
from perdure.journal.record import Outcome

_VALUES: Final = frozenset({"tool_return", "tool_content_result"})
_SAID: Final = {
    "model_retry": Verdict.REFUSED,
    "tool_failed": Verdict.REFUSED,
    "approval_required": Verdict.NOT_SENT,
    "call_deferred": Verdict.NOT_SENT,
}

Work = Callable[[Any], Awaitable[Any]]


class ToolEndedOddly(Exception):
    """Stands for an exception of a tool of which the SDK made a result for the model."""


class Ending(msgspec.Struct, frozen=True):
    """How a call ended as the SDK tells it: the kind of its result, or an exception.

    `kind` is empty when there is no result, and `message` is what one says to the model. An
    exception beside a result says that it could not be written.
    """

    outcome: Outcome
    kind: str = ""
    message: str = ""
    error: Exception | None = None

    @classmethod
    def of(cls, result: object, outcome: Outcome, error: Exception | None = None) -> Ending:
        """Return how a call ended that gave a result of the SDK's, or None, and an exception."""
        kind, message = (getattr(result, name, "") for name in ("kind", "message"))
        return cls(outcome, kind, message, error)

    @property
    def is_value(self) -> bool:
        """Whether the tool returned."""
        return self.kind in _VALUES

    def applied(self) -> Reported:
        """Report that the tool did what it does."""
        return Reported(self.outcome, Verdict.APPLIED, self.message)

    def refused(self) -> Reported:
        """Report that the tool refused, and did nothing."""
        return Reported(self.outcome, Verdict.REFUSED, self.message)

    def not_sent(self) -> Reported:
        """Report that nothing left the process."""
        return Reported(self.outcome, Verdict.NOT_SENT, self.message, self.error)

    def told(self, why: str = "") -> Reported:
        """Report that the model hears what there is to hear, and that nobody knows."""
        return Reported(self.outcome, Verdict.UNKNOWN, why or self.message)

    def doubted(self, error: BaseException | None) -> Reported:
        """Report that nobody knows, and leave it to what the tool declares of `error`."""
        if not isinstance(error, Exception):
            error = self.error or ToolEndedOddly(f"{self.kind}: {self.message}".strip(": "))
        return Reported(self.outcome, None, error=error)

    def by_kind(self) -> Reported:
        """Report what the kind of the result says, when nobody has seen more."""
        if self.is_value:
            return self.applied()
        match _SAID.get(self.kind):
            case None:
                return self.doubted(self.error)
            case verdict:
                return Reported(self.outcome, verdict, self.message)


class Watch(Protocol):
    """Watches one attempt at a call, to tell more of it than its result does."""

    async def make(self, work: Work, params: Any) -> Any:
        """Do the work with the parameters of the call, and return what it returns."""
        ...

    def report(self, ending: Ending) -> Reported:
        """Return what is recorded, and what became of the effect."""
        ...


class NoWatch:
    """Sees nothing but the result."""

    async def make(self, work: Work, params: Any) -> Any:
        """Do the work."""
        return await work(params)

    def report(self, ending: Ending) -> Reported:
        """Return what the result itself says."""
        return ending.by_kind()
