from __future__ import annotations

from perdure.errors.root import PerdureError


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
