from __future__ import annotations

from collections.abc import Sequence

from perdure.errors.root import PerdureError


class RunError(PerdureError):
    """A run, or the function it calls, cannot do what was asked."""


class InvalidFunction(RunError):
    """A function cannot be registered or called as it was declared."""


class InvalidOptions(RunError):
    """An option has a value that nothing can be done with."""


class RuntimeUnreachable(RunError):
    """The server through which runs are executed does not answer."""


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


class RunEnded(RunError):
    """The run has ended, and takes no more messages; `state` is how."""

    def __init__(self, run_id: str, state: str) -> None:
        self.run_id = run_id
        self.state = state
        super().__init__(f"run {run_id} is {state}: it takes no more messages")


class DeadlineExceeded(RunError):
    """The run did not end in the time that it was given."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} did not end before its deadline")


class WaitTimedOut(RunError, TimeoutError):
    """Nothing came for a wait in the time that it was given; `name` is what it waited for."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


class MessageConflict(RunError):
    """Another message was sent to the run under the same id."""


class MessageTaken(RunError):
    """The run has taken the message already: it can neither be edited nor withdrawn."""


class UnknownApproval(RunError):
    """A run asked for nothing of that id."""


class AlreadyResolved(RunError):
    """Somebody else answered first; `winner` is that answer, `by` whose and `at` when."""

    def __init__(
        self, run_id: str, item_id: str, *, winner: object, by: str | None, at: float | None
    ) -> None:
        self.run_id = run_id
        self.item_id = item_id
        self.winner = winner
        self.by = by
        self.at = at
        super().__init__(
            f"{item_id!r} of run {run_id} was answered by {by or 'somebody'} already: {winner}"
        )


class ApprovalClosed(RunError):
    """The run does not wait for an answer any more."""


class ApprovalChanged(RunError):
    """The answer is about other arguments than those that the run asks with."""


class UnknownSchedule(RunError):
    """The store knows no schedule of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no schedule {name!r} in this store: a worker writes it when it first opens"
            " an App that declares it"
        )


class UnknownSession(RunError):
    """The store holds nothing of a session of that name, or no more."""


class UnknownQueue(RunError):
    """The store knows no queue of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no queue {name!r} in this store: declare it with app.queue({name!r}, …)"
            " before the App opens, here or in a worker"
        )


class UnknownOperation(RunError):
    """The run recorded no such operation."""


class ForkRepeats(RunError):
    """A fork may do again what the other run did.

    `operation_keys` are its effects, and `run_ids` the runs that it started, from there on.
    """

    def __init__(
        self, run_id: str, at: str, operation_keys: Sequence[str], run_ids: Sequence[str] = ()
    ) -> None:
        self.run_id = run_id
        self.operation_keys = operation_keys
        self.run_ids = run_ids
        named = ", ".join((*operation_keys, *(f"run {each}" for each in run_ids)))
        super().__init__(
            f"from {at} on, run {run_id} did to the world what a fork may do again: {named}. Look"
            " at them with `perdure effects show` and `perdure show`, and fork after them, give"
            " their outcome, or accept that they are repeated: repeat_effects=True,"
            " --repeat-effects"
        )


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
