from __future__ import annotations

from typing import Final

from temporalio import exceptions
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.errors import PerdureError, RuntimeFailed

_AROUND: Final = (WorkflowFailureError, ActivityError)


def refusal(error: PerdureError) -> ApplicationError:
    """Return what something fails with that nobody can do, once and for all, caused by an error."""
    refused = ApplicationError(str(error), type=type(error).__name__, non_retryable=True)
    refused.__cause__ = error
    return refused


def failed(key: str, error: BaseException) -> RuntimeFailed:
    """Return the error that an operation raises which came back with no record."""
    cause = error
    while isinstance(cause, _AROUND) and cause.__cause__ is not None:
        cause = cause.__cause__
    match cause:
        case ApplicationError(type=str(name)):
            return RuntimeFailed(key, f"{name}: {cause.message}")
        case exceptions.TimeoutError(type=kind):
            named = "" if kind is None else f" ({kind.name.lower().replace('_', '-')})"
            return RuntimeFailed(key, f"its time is over{named}: {cause.message}")
        case _:
            return RuntimeFailed(key, f"{type(cause).__name__}: {cause}")
