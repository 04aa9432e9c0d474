from __future__ import annotations

from collections.abc import Sequence

from perdure.errors.root import PerdureError


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
