from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, cast

from pydantic_ai.exceptions import ModelRetry, ToolFailed

from perdure.adapters.pydantic_ai.ending import Ending, Work
from perdure.declaration import Reported

_CLOSED: Final = (-32000, "Connection closed")
_UNREAD: Final = frozenset({-32601, -32020, -32022})
_INVALID_PARAMS: Final = -32602

_under_way: ContextVar[McpCall | None] = ContextVar("perdure_mcp_call", default=None)


class McpCall:
    """Watches one attempt at a tool of a server: what was sent, and what came of it.

    `trusted` says that the server means what it says; `harmless`, that the tool only reads, and
    is asked once more when the connection is lost. `must_pass` says that nothing is sent past the
    watcher of its toolset.
    """

    def __init__(self, *, trusted: bool, harmless: bool, must_pass: bool) -> None:
        self.harmless = harmless
        self.lost = False
        self._trusted = trusted
        self._must_pass = must_pass
        self._passed = False
        self._sent = 0
        self._answered = False
        self._error: Exception | None = None

    async def make(self, work: Work, params: Any) -> Any:
        """Call the tool."""
        token = _under_way.set(self)
        try:
            return await work(params)
        finally:
            _under_way.reset(token)

    def come_to(self) -> None:
        """Note that the toolset has come to where calls are sent."""
        self._passed = True

    def send(self) -> None:
        """Note that a call goes out."""
        self._sent += 1
        self._answered, self._error, self.lost = False, None, False

    def end(self, error: Exception | None, *, lost: bool = False) -> None:
        """Note how the call ended that went out last, and whether its connection was lost."""
        self._answered, self._error, self.lost = error is None, error, lost

    def report(self, ending: Ending) -> Reported:
        """Return what is recorded, and what became of the effect."""
        if not self._passed:
            return self._unseen(ending)
        if self._sent == 0:
            return ending.applied() if ending.is_value else ending.not_sent()
        return ending.applied() if self._answered else self._failed(ending)

    def _failed(self, ending: Ending) -> Reported:
        error = self._error
        protocol = None if error is None else protocol_error(error)
        if protocol is not None and self._is_refusal(protocol):
            return ending.refused()
        if error is not None and protocol is None and _is_answer(error):
            return ending.told()
        doubt = protocol or error
        if ending.is_value:
            return ending.told("it was cut short" if doubt is None else _described(doubt))
        return ending.doubted(doubt)

    def _unseen(self, ending: Ending) -> Reported:
        if ending.error is not None and self._must_pass:
            # All that comes before is to connect.
            return ending.not_sent()
        if ending.kind in {"model_retry", "tool_failed"}:
            return ending.told()
        return ending.by_kind()

    def _is_refusal(self, error: Exception) -> bool:
        code = _code(error)
        return code in _UNREAD or (self._trusted and code == _INVALID_PARAMS)


def call_under_way() -> McpCall | None:
    """Return the attempt at a server's tool that this code is part of, or None."""
    return _under_way.get()


def protocol_error(error: BaseException) -> Exception | None:
    """Return the error of the protocol that a call ended with, or None for any other."""
    cause: BaseException | None = error
    if isinstance(error, ModelRetry | ToolFailed):
        cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", cause)
        return next(filter(None, map(protocol_error, group.exceptions)), None)
    return cause if isinstance(cause, Exception) and _code(cause) is not None else None


def _code(error: Exception) -> int | None:
    code = getattr(getattr(error, "error", None), "code", None)
    return code if isinstance(code, int) else None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _is_answer(error: Exception) -> bool:
    """Return whether a server says by an error that its tool failed."""
    # The client's own error is of a distribution that comes and goes with the server.
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ModelRetry | ToolFailed) or "ToolError" in names


def says_closed(error: Exception) -> bool:
    """Return whether a call ended because its connection did."""
    protocol = protocol_error(error)
    return protocol is not None and (_code(protocol), str(protocol)) == _CLOSED
