from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from perdure.errors.root import JournalError


class InvalidInvocation(JournalError):
    """An identifier or the sequence number of an invocation is malformed."""


class InvalidPayload(JournalError):
    """A payload is empty, over its size limit, or holds what cannot be stored or read."""


class InvalidRecord(JournalError):
    """A record does not have the shape or the outcome that its status requires."""


class UnsupportedRecordVersion(JournalError):
    """A record is well formed but of a version that this release cannot read."""


class InputDigestMismatch(JournalError):
    """A record's SHA-256 does not belong to the input it carries."""


class RuntimeRecordMismatch(JournalError):
    """A runtime returned a record of another invocation than the one it was given."""


class RuntimeFailed(JournalError):
    """A runtime came to no record of an operation, which may have been performed all the same.

    `key` is the operation, and `why` what the runtime says of it.
    """

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        self.why = why
        super().__init__(f"operation {key} came to no record, and may have been performed: {why}")


class ReplayMismatch(JournalError):
    """The code asks for something else than the journal holds under the same key.

    The run is parked as `needs_attention`: neither answer may be guessed. Deploy the code that
    recorded the journal, or cancel the run. `recorded` and `asked` are kind, handler id, SHA-256.
    `asked_json` is the input that is asked for now, until it was compared; empty where it is not at
    hand.
    """

    asked_json: bytes = b""

    def __init__(
        self, key: str, *, recorded: tuple[str, str, str], asked: tuple[str, str, str]
    ) -> None:
        self.key = key
        self.recorded_kind, self.recorded_handler, self.recorded_sha256 = recorded
        self.asked_kind, self.asked_handler, self.asked_sha256 = asked
        self._how = ""
        super().__init__(self._said)

    def differ(self, how: str) -> None:
        """Say how the inputs differ, if nothing but they does."""
        asked = (self.asked_kind, self.asked_handler)
        if how and asked == (self.recorded_kind, self.recorded_handler):
            self._how = f": {how}"
            self.args = (self._said,)

    @property
    def _said(self) -> str:
        return f"{self.finding}. Deploy the code that recorded it, or cancel the run"

    @property
    def finding(self) -> str:
        """What was found, without what to do about it."""
        return (
            f"operation {self.key} was recorded as {self.recorded_kind} by"
            f" {self.recorded_handler!r} with input {self.recorded_sha256}, and the code now asks"
            f" for {self.asked_kind} by {self.asked_handler!r} with input"
            f" {self.asked_sha256}{self._how}; nothing was called"
        )


class UnaskedOperation(JournalError):
    """The code came to its end without asking for what an earlier execution recorded or began.

    The run is parked as `needs_attention`: the code, or the order of its tasks, has changed, and
    what was not asked for may have acted. `finding` is that, without what to do about it.
    """

    def __init__(self, run_id: str, keys: list[str]) -> None:
        self.run_id = run_id
        self.keys = keys
        shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        self.finding = (
            f"run {run_id} came to its end without asking for {shown}, which an earlier execution"
            " recorded or began: the code has changed, or depends on time or on the order of tasks"
        )
        super().__init__(
            f"{self.finding}. Deploy the code that asked for it and resume the run, or cancel it"
        )


class DuplicateOperation(JournalError):
    """Two operations of one run claim the same identity at the same time."""


class MissingHandler(JournalError):
    """No worker function is registered for an operation kind and handler id."""


class UnmetNeeds(MissingHandler):
    """What a run will need is not there, found before it did anything.

    `missing` says of each handler that there is none, what needs it and how it is registered.
    """

    def __init__(self, run_id: str, missing: Sequence[str]) -> None:
        self.run_id = run_id
        self.missing = tuple(missing)
        super().__init__(
            f"run {run_id} did nothing, since it would come to need what is not there: "
            + "; ".join(self.missing)
        )


class UndeclaredOrigins(UnmetNeeds):
    """A toolset lists its tools only later, and nobody said where they come from.

    `toolsets` are its name and those of others; `missing` includes them.
    """

    def __init__(self, run_id: str, toolsets: Sequence[str], missing: Sequence[str]) -> None:
        self.toolsets = tuple(toolsets)
        super().__init__(run_id, missing)


class BudgetExceeded(JournalError):
    """One more operation would go over the budget of its run; it was not performed.

    `name` is the limit, `limit` what it allows and `used` what is used of it already.
    """

    def __init__(self, name: str, *, limit: int | Decimal, used: int | Decimal) -> None:
        self.name = name
        self.limit = limit
        self.used = used
        super().__init__(
            f"the budget allows {name}={limit}, and {used} are used: nothing was called. Give the"
            " run a larger budget and resume it, or let it end"
        )


class OperationFailed(JournalError):
    """An operation failed; the same error is raised on its first execution and on every replay.

    `code` is a stable identifier (letters, digits, `.`, `_`, `-`), `type_name` the qualified name
    of the exception that the handler raised, `data` a JSON value with more, or None.
    """

    def __init__(
        self,
        key: str,
        *,
        code: str,
        message: str,
        type_name: str = "",
        retryable: bool = False,
        data: Any = None,
    ) -> None:
        self.key = key
        self.code = code
        self.type_name = type_name or code
        self.message = message
        self.retryable = retryable
        self.data = data
        super().__init__(f"operation {key} failed with {self.type_name}: {message}")


class OperationSuspended(JournalError):
    """An operation's outcome waits for somebody outside; `state_json` says for what."""

    def __init__(self, key: str, *, reason: str, state_json: bytes) -> None:
        self.key = key
        self.reason = reason
        self.state_json = state_json
        super().__init__(f"operation {key} is suspended: {reason}")
