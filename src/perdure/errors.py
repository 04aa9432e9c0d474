"""Every exception of perdure.

    PerdureError
    ├── JournalError          what was asked and what came back
    │   ├── InvalidInvocation, InvalidPayload            malformed before anything is called
    │   ├── InvalidRecord, UnsupportedRecordVersion, InputDigestMismatch
    │   ├── ReplayMismatch, UnaskedOperation             code and journal disagree
    │   ├── RuntimeRecordMismatch, DuplicateOperation, MissingHandler
    │   └── OperationFailed, OperationSuspended          how an operation ends otherwise
    ├── EffectError           what touched the world
    │   ├── EffectRejected, EffectNotSent                it was not applied
    │   ├── EffectAmbiguous                              nobody knows whether it was
    │   ├── EffectInProgress, EffectConflict, EffectErased   it was not sent by this call
    │   └── UnknownEffect, StaleDecision                 what a person decides about
    ├── RunError              runs and the functions they call
    │   ├── InvalidFunction, InvalidOptions, UnknownFunction, UnknownRun, RunConflict
    │   ├── RunFailed, RunCancelled, RunNeedsAttention   how `result()` ends otherwise
    │   ├── RunErased, NotErasable                       what it held is gone, or cannot go yet
    │   └── NotInRun, ForeignTask, EngineClosed          misuse of a run's context or an App
    ├── StorageError          the place where runs live
    │   ├── InvalidUrl, MissingExtra, SchemaTooNew, KeyUnavailable
    │   └── StorageMissing, StorageBusy, StorageFull, StorageReadOnly, StorageCorrupt
    └── CommandError          what was typed on the command line cannot be done

Three signals are not errors of the program and derive from `BaseException`, so that an
`except Exception` in an agent or a tool cannot swallow them: `RunParked`, `RunStopped` and
`LeaseLost`. They unwind the code of a run that must do nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PerdureError(Exception):
    """The root of every error that perdure raises; each can be pickled."""

    def __reduce__(self) -> Any:
        """Rebuild without the constructor, which takes other arguments than the message."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class JournalError(PerdureError):
    """The journal or the operation contract was violated."""


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


class ReplayMismatch(JournalError):
    """The code asks for something else than the journal holds under the same key.

    The run is parked as `needs_attention`: neither answer may be guessed. Deploy the code that
    recorded the journal, or cancel the run. `recorded` and `asked` are kind, handler id, SHA-256.
    """

    def __init__(
        self, key: str, *, recorded: tuple[str, str, str], asked: tuple[str, str, str]
    ) -> None:
        self.key = key
        self.recorded_kind, self.recorded_handler, self.recorded_sha256 = recorded
        self.asked_kind, self.asked_handler, self.asked_sha256 = asked
        super().__init__(
            f"operation {key} was recorded as {recorded[0]} by {recorded[1]!r} with input"
            f" {recorded[2]}, and the code now asks for {asked[0]} by {asked[1]!r} with input"
            f" {asked[2]}; nothing was called. Deploy the code that recorded it, or"
            " cancel the run"
        )


class UnaskedOperation(JournalError):
    """The code came to its end without asking for what an earlier execution recorded or began.

    The run is parked as `needs_attention`: the code, or the order of its tasks, has changed, and
    what was not asked for may have acted.
    """

    def __init__(self, run_id: str, keys: list[str]) -> None:
        self.run_id = run_id
        self.keys = keys
        shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        super().__init__(
            f"run {run_id} came to its end without asking for {shown}, which an earlier execution"
            " recorded or began: the code has changed, or depends on time or on the order of tasks."
            " Deploy the code that asked for it and resume the run, or cancel it"
        )


class DuplicateOperation(JournalError):
    """Two operations of one run claim the same identity at the same time."""


class MissingHandler(JournalError):
    """No worker function is registered for an operation kind and handler id."""


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


class EffectError(PerdureError):
    """An effect was not applied, or nobody knows."""


class EffectRejected(EffectError):
    """The target reported a refusal: the effect was not applied.

    Raised by the function that applies an effect, and only when the target said so.
    """


class EffectNotSent(EffectError):
    """Nothing left this process: the effect was not applied.

    Raised by the function that applies an effect, before it sends anything. A `RetryPolicy` tries
    it again unless it says otherwise.
    """

    retryable = True


class EffectAmbiguous(EffectError):
    """Nobody knows whether an effect was applied; its receipt says what is known.

    `needs_person` is False where the policy is to tell the caller and leave it at that.
    """

    def __init__(
        self, operation_key: str, target: str, why: str, *, needs_person: bool = True
    ) -> None:
        self.operation_key = operation_key
        self.target = target
        self.why = why
        self.needs_person = needs_person
        advice = "; do not repeat it"
        if needs_person:
            advice = f". Look at the target, then settle it: perdure effects show {operation_key}"
        super().__init__(
            f"the effect {operation_key} on {target!r} may have been applied: {why}{advice}"
        )


class EffectInProgress(EffectError):
    """Another caller applies the effect right now; it was not sent a second time."""

    def __init__(self, operation_key: str) -> None:
        self.operation_key = operation_key
        super().__init__(f"the effect {operation_key} is being applied by another caller")


class EffectConflict(EffectError):
    """An effect was asked for again as another one than its receipt was made for."""

    def __init__(self, operation_key: str, how: str = "with other arguments") -> None:
        self.operation_key = operation_key
        super().__init__(
            f"the effect {operation_key} was begun {how}; nothing was sent. Another effect needs an"
            " identity of its own"
        )


class EffectErased(EffectError):
    """The receipt of an effect was erased; nothing was sent. `state` is what it had said."""

    def __init__(self, operation_key: str, *, state: str, by: str, why: str) -> None:
        self.operation_key = operation_key
        self.state = state
        super().__init__(
            f"the receipt of the effect {operation_key} said {state!r} when {by} erased it ({why});"
            " nothing was sent. Another effect needs an identity of its own"
        )


class UnknownEffect(EffectError):
    """The store holds no receipt of that operation key."""


class StaleDecision(EffectError):
    """A decision named a version of a receipt that is not its version any more."""


class RunError(PerdureError):
    """A run, or the function it calls, cannot do what was asked."""


class InvalidFunction(RunError):
    """A function cannot be registered or called as it was declared."""


class InvalidOptions(RunError):
    """An option has a value that nothing can be done with."""


class UnknownFunction(RunError):
    """No run function of that name and version is registered with the App."""


class UnknownRun(RunError):
    """The store holds no run of that id."""


class RunConflict(RunError):
    """A run of that id exists with another function or input."""


class RunFailed(RunError):
    """The run function raised; `code`, `type_name` and `message` say what, `traceback` where."""

    def __init__(
        self, run_id: str, *, code: str, type_name: str, message: str, traceback: str = ""
    ) -> None:
        self.run_id = run_id
        self.code = code
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        super().__init__(
            f"run {run_id} failed with {type_name}: {message}; `perdure resume {run_id}` lets it go"
            " on once its cause is mended"
        )


class RunCancelled(RunError):
    """The run was cancelled before it had a result."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} was cancelled")


class RunNeedsAttention(RunError):
    """The run is parked until a person acts; `code` and `message` say why."""

    def __init__(self, run_id: str, *, code: str, message: str) -> None:
        self.run_id = run_id
        self.code = code
        self.message = message
        super().__init__(f"run {run_id} needs attention: {message}")


class RunErased(RunError):
    """What a run was given, recorded and came to was erased."""

    def __init__(self, run_id: str, *, by: str, why: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} was erased by {by} ({why}), and never runs again")


class NotErasable(RunError):
    """Something is still going on; `operation_keys` are the effects that nobody has settled."""

    def __init__(self, message: str, operation_keys: Sequence[str] = ()) -> None:
        self.operation_keys = operation_keys
        super().__init__(message)


class NotInRun(RunError):
    """Something that belongs inside a run was used outside of one."""


class ForeignTask(RunError):
    """A task used the context of another one: give each its own `context.branch(name)`."""


class EngineClosed(RunError):
    """The App is not open: use it inside `async with app:`."""


class StorageError(PerdureError):
    """The place where runs live could not read or write."""


class InvalidUrl(StorageError):
    """An App URL is malformed or of a scheme that perdure does not know."""


class MissingExtra(StorageError):
    """A part of perdure was used whose optional dependency is not installed."""


class StorageMissing(StorageError):
    """There is no database where one was to be looked at."""


class StorageBusy(StorageError):
    """Another process held the write lock for longer than the busy timeout."""


class StorageFull(StorageError):
    """The disk is full; what was acknowledged before is safe."""


class StorageReadOnly(StorageError):
    """The database file or its folder cannot be written."""


class StorageCorrupt(StorageError):
    """The file is not a database of perdure, or its content fails a check."""


class KeyUnavailable(StorageError):
    """A value is encrypted with a key that was not given, or one is to be and cannot be."""


class SchemaTooNew(StorageError):
    """The database was written by a newer release of perdure; upgrade this one."""


class CommandError(PerdureError):
    """What was typed on the command line cannot be done as it stands."""


class RunSignal(BaseException):
    """Unwinds the code of a run; not an `Exception`, so that no agent or tool swallows it."""


class RunParked(RunSignal):
    """The run stops here and waits for a person; `cause` is the error that says why."""

    def __init__(self, cause: PerdureError) -> None:
        self.cause = cause
        super().__init__(str(cause))


class RunStopped(RunSignal):
    """The run stops here: its worker closes and gives it back, or its function has returned."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} has ended here, or stops to go on in another execution")


class LeaseLost(RunSignal):
    """The run belongs to another worker now, or may; this one writes nothing more."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"this worker no longer owns run {run_id}")


def _rebuilt(
    kind: type[PerdureError], args: tuple[Any, ...], state: dict[str, Any]
) -> PerdureError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
